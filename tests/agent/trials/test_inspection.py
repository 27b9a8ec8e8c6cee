"""An inspection shows every layer's gradient and output as they are, and names the ones that are ill."""

import json
from typing import Any

import pytest
import torch

import caboose

LOSS = torch.nn.CrossEntropyLoss()


def a_batch(size: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(size, 8, generator=generator)
    return inputs, inputs[:, :3].argmax(1)


def a_model(*between: torch.nn.Module) -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), *(between or (torch.nn.ReLU(),)), torch.nn.Linear(16, 3))


def test_the_numbers_are_those_of_the_gradient() -> None:
    model, (inputs, targets) = a_model(), a_batch()
    found = caboose.inspect(model, LOSS, (inputs, targets))
    loss = LOSS(model(inputs), targets)
    loss.backward()
    assert found.loss == pytest.approx(loss.item())
    for look, parameter in zip(found.gradients, model.parameters(), strict=True):
        gradient = parameter.grad
        assert gradient is not None
        assert look.norm == pytest.approx(float(gradient.norm()), rel=1e-5)
        assert look.std == pytest.approx(float(gradient.std(correction=0)), rel=1e-4)
        assert look.mean == pytest.approx(float(gradient.mean()), rel=1e-4, abs=1e-8)
        assert (look.lowest, look.highest) == pytest.approx((float(gradient.min()), float(gradient.max())))
        assert look.zeros == pytest.approx(float((gradient == 0).float().mean()))
    assert found.suspects() == []


class WithBranch(torch.nn.Module):
    """One part is frozen, one is never used, one is behind a detach."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = torch.nn.Linear(8, 8).requires_grad_(False)
        self.unused = torch.nn.Linear(8, 8)
        self.cut = torch.nn.Linear(8, 8)
        self.last = torch.nn.Linear(8, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.last(self.cut(self.frozen(inputs)).detach())  # type: ignore[no-any-return]


def test_frozen_and_disconnected_parameters_are_told_apart() -> None:
    found = {look.name: look.verdict for look in caboose.inspect(WithBranch(), LOSS, a_batch()).gradients}
    assert found["frozen.weight"] == "frozen"
    assert found["unused.weight"] == found["cut.bias"] == "disconnected"
    assert found["last.weight"] == "ok"


def test_dead_units_and_what_they_cut_off_are_named() -> None:
    model = a_model()
    with torch.no_grad():
        model[0].bias.fill_(-100.0)
    found = caboose.inspect(model, LOSS, a_batch())
    assert "0.weight: gradient zero" in found.suspects()
    assert "1: output dead" in found.suspects()


def test_saturation_is_named() -> None:
    model = a_model(torch.nn.Tanh())
    with torch.no_grad():
        model[0].weight.mul_(100.0)
    assert "1: output saturated" in caboose.inspect(model, LOSS, a_batch()).suspects()


def test_vanishing_is_named_against_the_other_layers() -> None:
    deep = [part for _ in range(7) for part in (torch.nn.Linear(16, 16), torch.nn.Sigmoid())]
    model = a_model(torch.nn.Sigmoid(), *deep)
    assert "0.weight: gradient vanishing" in caboose.inspect(model, LOSS, a_batch()).suspects()


def test_a_nan_is_named() -> None:
    model = a_model()
    with torch.no_grad():
        model[2].weight[0, 0] = float("nan")
    found = caboose.inspect(model, LOSS, a_batch())
    assert "2.weight: gradient not finite" in found.suspects()
    assert "2: output not finite" in found.suspects()


def test_a_compiled_model_is_looked_into_without_compiling_it() -> None:
    model: Any = torch.compile(a_model(), backend="eager")
    found = caboose.inspect(model, LOSS, a_batch())
    assert [look.name for look in found.gradients] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert len(found.activations) == 3


def test_the_table_fits_a_hundred_columns_and_the_plot_has_every_layer() -> None:
    found = caboose.inspect(WithBranch(), LOSS, a_batch())
    assert max(map(len, str(found).splitlines())) <= 100
    assert "! disconnected" in str(found)
    assert list(found.plot().data[0].x) == ["last.weight", "last.bias"]
    assert json.dumps(found.as_json())


def test_the_table_shows_the_lowest_and_the_highest_element() -> None:
    found = caboose.inspect(a_model(), LOSS, a_batch())
    table = str(found).splitlines()
    assert table[2].split() == ["gradient", "of", "norm", "mean", "std", "min", "max", "zeros", "verdict"]
    first = found.gradients[0]
    assert table[3].split()[4:6] == [f"{first.lowest:.1e}", f"{first.highest:.1e}"]
