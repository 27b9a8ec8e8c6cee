"""The range test finds the rates between which a model learns, and says so when there are none."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

import caboose
from caboose.trials.find_lr import read

RATES = tuple(float(rate) for rate in np.geomspace(1e-6, 10, 100))


def a_curve(fall_at: float, *, rise_at: float = 1.0, noise: float = 0.01) -> list[float]:
    rng = np.random.default_rng(0)
    fall = [1.5 / (1 + (rate / fall_at) ** 2) for rate in RATES]
    rise = [20.0 * max(0.0, math.log10(rate / rise_at)) ** 2 for rate in RATES]
    return [0.8 + a + b + float(noise * rng.standard_normal()) for a, b in zip(fall, rise, strict=True)]


@pytest.mark.parametrize("fall_at", [1e-4, 1e-3, 1e-2])
def test_the_suggestion_is_where_the_loss_falls_steepest(fall_at: float) -> None:
    found = read(RATES, a_curve(fall_at), current=1e-3)
    assert found.suggestion == pytest.approx(fall_at, rel=0.6)
    assert found.lowest is not None
    assert found.suggestion < found.lowest


def test_a_loss_that_blows_up_at_the_end_does_not_hide_the_lowest_point() -> None:
    num = sum(rate < 5e-3 for rate in RATES)
    losses = [*a_curve(1e-3)[: num - 1], 1e9]
    found = read(RATES[:num], losses, current=1e-3)
    assert found.lowest is not None
    assert found.lowest > 2e-3, "without the cut it is 1.5e-3"


@pytest.mark.parametrize("losses", [[2.0] * 100, list(2 + 0.1 * np.random.default_rng(1).standard_normal(100))])
def test_a_loss_that_never_falls_gives_no_suggestion(losses: list[float]) -> None:
    found = read(RATES, losses, current=1e-3)
    assert found.suggestion is None
    assert "never fell by more than it scatters" in str(found)


def test_a_rate_above_the_lowest_point_is_told() -> None:
    assert "yours, 5, is above the lowest point" in str(read(RATES, a_curve(1e-3), current=5.0))


def a_problem() -> tuple[torch.nn.Module, list[tuple[torch.Tensor, torch.Tensor]]]:
    torch.manual_seed(0)
    inputs = torch.randn(256, 10)
    targets = inputs @ torch.randn(10, 1)
    batches = list(zip(inputs.split(32), targets.split(32), strict=True))
    return torch.nn.Linear(10, 1), batches


def test_on_a_quadratic_it_stops_early_and_suggests_a_rate_that_is_stable(tmp_path: Path) -> None:
    model, batches = a_problem()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = caboose.find_lr(model, torch.nn.MSELoss(), batches, optimizer)
    limit = caboose.sharpness(model, torch.nn.MSELoss(), batches, num_batches=8, num_directions=1).max_stable_lr
    assert found.suggestion is not None
    assert limit / 100 < found.suggestion < limit
    assert len(found.losses) < 100
    assert "grew past 4 times" in found.says
    assert "Learning rate range test" in found.plot(tmp_path / "lr.html").to_json()
    assert (tmp_path / "lr.html").stat().st_size > 100_000, "opens offline"


def test_the_ratio_between_groups_is_kept() -> None:
    model, batches = a_problem()
    groups = [{"params": [model.weight], "lr": 0.1}, {"params": [model.bias], "lr": 0.01}]
    seen = []

    class Seen(torch.optim.SGD):
        def step(self, closure: None = None) -> None:
            seen.append([group["lr"] for group in self.param_groups])
            super().step(closure)

    caboose.find_lr(model, torch.nn.MSELoss(), batches, Seen(groups, lr=1.0), num_steps=20)
    assert all(high == pytest.approx(10 * low) for high, low in seen)
    assert seen[0][0] == pytest.approx(1e-7)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"start": 1.0, "end": 0.1}, "0 < start < end"),
        ({"num_steps": 3}, "at least 20"),
        ({"stop_at": 1.0}, "more than 1"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, float], says: str) -> None:
    model, batches = a_problem()
    with pytest.raises(ValueError, match=says):
        caboose.find_lr(model, torch.nn.MSELoss(), batches, torch.optim.SGD(model.parameters()), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("is_sorted", [True, False])
def test_batches_that_are_sorted_by_class_are_no_fair_test(is_sorted: bool) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    targets = torch.arange(4).repeat_interleave(32) if is_sorted else torch.randint(0, 4, (128,))
    inputs = torch.randn(128, 8) + targets[:, None]
    batches = [(inputs[i : i + 16], targets[i : i + 16]) for i in range(0, 128, 16)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = caboose.find_lr(model, torch.nn.CrossEntropyLoss(), batches, optimizer, num_steps=40)
    assert ("sorted by class" in found.says) is is_sorted
