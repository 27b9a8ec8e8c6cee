"""Sharpness is the curvature that linear algebra finds, by both ways to it; its rise does not depend on the scale."""

from pathlib import Path
from typing import Any

import pytest
import torch

import caboose
from caboose.trials.hessian import Eigenvalue, top_eigenvalue
from caboose.trials.trial import Trial
from caboose.trials.weight_space import WeightSpace

LOSS = torch.nn.MSELoss()


def a_model() -> tuple[torch.nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    return model, (torch.randn(12, 3), torch.randn(12, 1))


def by_algebra(model: torch.nn.Module, batch: tuple[torch.Tensor, torch.Tensor], *, lowest: bool = False) -> float:
    names = [name for name, _ in model.named_parameters()]
    values = [p.detach() for p in model.parameters()]

    def loss(flat: torch.Tensor) -> torch.Tensor:
        parts = flat.split([v.numel() for v in values])
        given = {name: part.view_as(v) for name, part, v in zip(names, parts, values, strict=True)}
        return LOSS(torch.func.functional_call(model, given, (batch[0],)), batch[1])  # type: ignore[no-any-return]

    hessian = torch.autograd.functional.hessian(loss, torch.cat([v.reshape(-1) for v in values]))
    eigenvalues = torch.linalg.eigvalsh(hessian)
    return float(eigenvalues.min() if lowest else eigenvalues[eigenvalues.abs().argmax()])


def test_the_eigenvalue_is_that_of_the_whole_hessian() -> None:
    model, batch = a_model()
    found = caboose.sharpness(model, LOSS, [batch], num_iterations=300, tolerance=1e-4)
    assert found.eigenvalue.method == "exact"
    assert found.eigenvalue.value == pytest.approx(by_algebra(model, batch), rel=1e-3)
    assert found.max_stable_lr == pytest.approx(2 / found.eigenvalue.value)


class Once(torch.autograd.Function):
    """Has no second derivative, as some kernels."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.clone()


def test_where_there_is_no_second_derivative_gradients_alone_give_the_same_number() -> None:
    model, batch = a_model()

    def once(model: Any, batch: Any) -> torch.Tensor:
        return LOSS(Once.apply(model(batch[0])), batch[1])  # type: ignore[no-any-return, no-untyped-call]

    found = caboose.sharpness(model, once, [batch], num_iterations=300, tolerance=2e-3)
    assert found.eigenvalue.method == "differences"
    assert found.eigenvalue.value == pytest.approx(by_algebra(model, batch), rel=1e-2)


def test_an_iteration_that_has_not_settled_says_so() -> None:
    model, batch = a_model()
    found = caboose.sharpness(model, LOSS, [batch], num_iterations=1)
    assert "not settled after 1 iterations" in str(found)


def test_the_filter_normalised_rise_does_not_depend_on_the_scale_of_the_weights() -> None:
    torch.manual_seed(1)
    inputs = torch.randn(64, 3)
    batch = (inputs, torch.randn(64, 1))
    model = torch.nn.Sequential(torch.nn.Linear(3, 16, bias=False), torch.nn.ReLU(), torch.nn.Linear(16, 1, bias=False))
    before = caboose.sharpness(model, LOSS, [batch], num_iterations=100)
    with torch.no_grad():
        model[0].weight.mul_(10)
        model[2].weight.div_(10)
    after = caboose.sharpness(model, LOSS, [batch], num_iterations=100)
    assert after.rise == pytest.approx(before.rise, rel=1e-3)
    assert after.eigenvalue.value > 10 * before.eigenvalue.value, "while the eigenvalue does"


def test_a_flat_loss_has_an_eigenvalue_of_zero() -> None:
    model = torch.nn.Linear(3, 1)
    with Trial("sharpness", model, lambda model, batch: model(batch).mean()) as trial:
        found = top_eigenvalue(
            trial,
            WeightSpace(trial),
            [torch.ones(2, 3)],
            num_iterations=3,
            tolerance=0.01,
            seed=0,
            report=lambda _: None,
        )
    assert found == Eigenvalue(0.0, 0.0, 1, "exact")


def test_the_profile_is_plotted(tmp_path: Path) -> None:
    model, batch = a_model()
    found = caboose.sharpness(model, LOSS, [batch], num_directions=2, num_iterations=2)
    assert len(found.plot().data) == 2
    with pytest.raises(ValueError, match=r"ends in \.png, \.svg or \.html"):
        found.plot(str(tmp_path / "sharp.gif"))


@pytest.mark.parametrize("option", ["num_batches", "num_directions", "num_iterations", "radius"])
def test_nothing_to_do_is_refused(option: str) -> None:
    model, batch = a_model()
    with pytest.raises(ValueError, match=rf"sharpness\({option}=0\)"):
        caboose.sharpness(model, LOSS, [batch], **{option: 0})  # type: ignore[arg-type]


def test_a_saddle_is_called_one() -> None:
    model, batch = a_model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 0.05
    found = caboose.sharpness(model, LOSS, [batch], num_iterations=300, tolerance=1e-3, saddle=True)
    assert found.lowest is not None
    assert found.lowest.value == pytest.approx(by_algebra(model, batch, lowest=True), rel=0.02)
    assert found.lowest.value < 0
    assert found.verdict == "saddle", str(found)
    assert "the loss still falls along some direction" in found.advice


def test_a_rate_above_the_limit_is_unstable() -> None:
    model, batch = a_model()
    found = caboose.sharpness(model, LOSS, batch, lr=100.0)
    assert found.verdict == "unstable"
    assert "lower the rate" in str(found)
    assert caboose.sharpness(model, LOSS, batch, lr=1e-4).verdict in ("flat", "moderate")


def test_a_minimum_of_huge_weights_is_sharp() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1, bias=False)
    inputs = torch.randn(64, 8)
    with torch.no_grad():
        model.weight *= 100
        targets = model(inputs) + 0.1 * torch.randn(64, 1)
    found = caboose.sharpness(model, LOSS, (inputs, targets))
    assert found.verdict == "sharp"
    assert "SAM" in found.advice
