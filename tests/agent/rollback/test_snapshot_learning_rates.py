"""A scaled learning rate stays scaled under every schedule."""

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler as schedules

from caboose.rollback.learning_rates import scale_lr, unknown_schedule

FACTOR, AT, STEPS = 0.25, 7, 30


def sequential(optimizer: torch.optim.Optimizer) -> Any:
    warm = schedules.LinearLR(optimizer, start_factor=0.1, total_iters=10)
    return schedules.SequentialLR(optimizer, [warm, schedules.CosineAnnealingLR(optimizer, 20, eta_min=0.001)], [10])


def chained(optimizer: torch.optim.Optimizer) -> Any:
    constant = schedules.ConstantLR(optimizer, factor=0.5, total_iters=12)
    return schedules.ChainedScheduler([constant, schedules.ExponentialLR(optimizer, 0.95)])


def plateau(optimizer: torch.optim.Optimizer) -> Any:
    return schedules.ReduceLROnPlateau(optimizer, factor=0.5, patience=2, min_lr=0.004)


SCHEDULES: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "lambda": lambda o: schedules.LambdaLR(o, lambda step: 1 / (1 + step)),
    "multiplicative": lambda o: schedules.MultiplicativeLR(o, lambda _: 0.9),
    "step": lambda o: schedules.StepLR(o, 5, gamma=0.5),
    "multi_step": lambda o: schedules.MultiStepLR(o, [4, 12, 20]),
    "cosine": lambda o: schedules.CosineAnnealingLR(o, 25, eta_min=0.002),
    "warm_restarts": lambda o: schedules.CosineAnnealingWarmRestarts(o, 6, eta_min=0.002),
    "one_cycle": lambda o: schedules.OneCycleLR(o, max_lr=0.4, total_steps=STEPS + 2),
    "cyclic": lambda o: schedules.CyclicLR(o, base_lr=0.01, max_lr=0.2, step_size_up=4, cycle_momentum=False),
    "polynomial": lambda o: schedules.PolynomialLR(o, total_iters=20, power=2.0),
    "sequential": sequential,
    "chained": chained,
    "plateau": plateau,
    "none": lambda _: None,
}


def rates(make: Callable[[torch.optim.Optimizer], Any], lr: Any, *, factor: float) -> list[float]:
    """The rate each step is taken with; scaled at one of them."""
    weights = [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)]
    groups = [{"params": weights[:1], "lr": copy.deepcopy(lr)}, {"params": weights[1:], "lr": copy.deepcopy(lr) * 2}]
    optimizer = torch.optim.AdamW(groups)
    scheduler = make(optimizer)
    seen = []
    for number in range(STEPS):
        if number == AT:
            assert scale_lr([optimizer], [] if scheduler is None else [scheduler], factor) == ""
        seen.append([float(group["lr"]) for group in optimizer.param_groups])
        optimizer.step()
        if isinstance(scheduler, schedules.ReduceLROnPlateau):
            scheduler.step(1.0)
        elif scheduler is not None:
            scheduler.step()
            assert [float(rate) for rate in scheduler.get_last_lr()] == [float(g["lr"]) for g in optimizer.param_groups]
    return [rate for pair in seen for rate in pair]


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("is_tensor", [False, True])
def test_every_later_rate_is_the_factor_times_what_it_would_have_been(name: str, is_tensor: bool) -> None:
    lr = torch.tensor(0.1, dtype=torch.float64) if is_tensor else 0.1
    plain, scaled = (rates(SCHEDULES[name], lr, factor=factor) for factor in (1.0, FACTOR))
    assert scaled[: 2 * AT] == plain[: 2 * AT]
    assert scaled[2 * AT :] == pytest.approx([FACTOR * rate for rate in plain[2 * AT :]], rel=1e-9)


def test_a_tensor_that_is_the_rate_of_two_groups_is_scaled_once_and_in_place() -> None:
    rate = torch.tensor(0.5)
    parameters = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    optimizer = torch.optim.SGD([{"params": [p], "lr": rate} for p in parameters], lr=rate)
    shared = [group["lr"] for group in optimizer.param_groups]
    scale_lr([optimizer], [], 0.5)
    assert [float(lr) for lr in shared] == [0.25, 0.25]
    assert all(group["lr"] is lr for group, lr in zip(optimizer.param_groups, shared, strict=True))


def test_a_scheduler_with_rates_of_its_own_is_named() -> None:
    class Homemade:
        def state_dict(self) -> dict[str, Any]:
            return {}

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    assert scale_lr([optimizer], [Homemade()], 0.5) == "Homemade may set its own learning rate again"
    assert optimizer.param_groups[0]["lr"] == 0.5


@pytest.mark.parametrize("factor", [0.0, -1.0, math.inf, math.nan])
def test_a_factor_that_makes_no_sense_is_refused(factor: float) -> None:
    with pytest.raises(ValueError, match="lr_scale="):
        scale_lr([], [], factor)


def test_a_scheduler_that_nobody_has_told_of_is_seen_by_what_it_leaves_in_its_groups() -> None:
    optimizers = [torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0) for _ in range(2)]
    assert unknown_schedule(optimizers, []) == ""
    first, second = (schedules.LambdaLR(optimizer, lambda _: 1.0) for optimizer in optimizers)
    reason = "a scheduler that is not known here sets the learning rate of SGD again: pass scheduler= to attach"
    assert unknown_schedule(optimizers, []) == unknown_schedule(optimizers, [first]) == reason
    assert unknown_schedule(optimizers, [first, second]) == ""
    assert unknown_schedule(optimizers, [first, schedules.ChainedScheduler([second])]) == ""
    assert scale_lr(optimizers, [first], 0.5) == reason
    for optimizer, scheduler in zip(optimizers, (first, second), strict=True):
        optimizer.step()
        scheduler.step()
    assert [optimizer.param_groups[0]["lr"] for optimizer in optimizers] == [0.5, 1.0], "as was said"
