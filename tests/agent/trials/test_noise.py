"""`gradient_noise`: the scale of a noise that is known, the verdict on the batch, and where updates point."""

from typing import Any

import pytest
import torch
from torch import nn

import caboose


def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """The gradient of each weight is the mean of the batch's column."""
    return (batch.mean(dim=0) * model.weight.flatten()).sum()  # type: ignore[operator]


def loader(each: list[torch.Tensor]) -> torch.utils.data.DataLoader[torch.Tensor]:
    return torch.utils.data.DataLoader(each, batch_size=None)  # type: ignore[arg-type]  # a list is a dataset


def batches(signal: float, scatter: float, size: int, num: int = 64) -> torch.utils.data.DataLoader[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return loader([signal + scatter * torch.randn(size, 200, generator=generator) for _ in range(num)])


def model() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(200, 1, bias=False)


@pytest.mark.parametrize(
    ("signal", "scatter", "size", "verdict"),
    [(1.0, 1.0, 32, "large"), (0.3, 1.0, 8, "balanced"), (0.1, 1.0, 4, "small")],
)
def test_the_noise_scale_is_that_of_the_data(signal: float, scatter: float, size: int, verdict: str) -> None:
    found = caboose.gradient_noise(model(), loss, batches(signal, scatter, size), num_batches=64)
    expected = (scatter / signal) ** 2
    assert found.noise_scale == pytest.approx(expected, rel=0.2)
    assert found.agreement == pytest.approx(1 / (1 + expected / size), rel=0.3)
    assert (found.verdict, found.batch) == (verdict, size)
    assert found.advice in str(found)


def test_gradients_without_any_signal_have_no_noise_scale() -> None:
    torch.manual_seed(0)
    pairs = [torch.randn(4, 200) for _ in range(8)]
    found = caboose.gradient_noise(model(), loss, loader([x for one in pairs for x in (one, -one)]), num_batches=16)
    assert found.noise_scale == float("inf")
    assert found.verdict == "small"
    assert found.as_json()["noise_scale"] is None


def test_an_update_goes_downhill_and_one_that_maximizes_goes_up() -> None:
    down, up = model(), model()
    data = batches(1.0, 1.0, 32, 8)
    before = down.weight.detach().clone()
    found = caboose.gradient_noise(down, loss, data, torch.optim.SGD(down.parameters(), lr=0.01), num_batches=8)
    assert found.update_direction == pytest.approx(1.0, abs=1e-4)
    assert found.update_ratio is not None
    assert torch.equal(down.weight, before), "everything is restored"
    wrong = torch.optim.SGD(up.parameters(), lr=0.01, maximize=True)
    rising = caboose.gradient_noise(up, loss, data, wrong, num_batches=8)
    assert rising.is_uphill
    assert "maximize=True" in rising.advice


@pytest.mark.parametrize(("data", "num"), [(loader([torch.ones(4, 200)]), 16), (batches(1.0, 1.0, 4, 4), 1)])
def test_one_batch_has_nothing_to_be_compared_with(data: Any, num: int) -> None:
    with pytest.raises(ValueError, match="gradient_noise"):
        caboose.gradient_noise(model(), loss, data, num_batches=num)
