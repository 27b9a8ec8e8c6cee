"""Scales the learning rate of a run so that it stays scaled under its schedule.

Design
------
A schedule computes each rate from stored numbers: the initial rates, upper and lower bounds, or the rate of the last
step. All of these are multiplied, in the groups and in the schedulers, however they are nested; then every later rate
is the factor times the original. A scheduler that stores its rates elsewhere, or that attach was not given, will
overwrite ours at its next step: that is reported. Every scheduler of torch leaves `initial_lr` in its groups, so a
group that has one and no known scheduler is detected.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

RATES = ("lr", "initial_lr", "max_lr", "min_lr", "swa_lr")
"""The keys of a parameter group that are learning rates, or from which schedulers compute one."""
LISTS = ("base_lrs", "max_lrs", "min_lrs", "_last_lr")
NUMBERS = ("eta_min", "default_min_lr")
OFF_SCHEDULE = 0.01
"""Relative distance from the scheduled rate at which a rate was set by something else."""
JUMP = 2.0
"""Scheduled rate over that at a snapshot from which a rollback warns that the schedule raised it."""
INNER = ("_schedulers", "schedulers", "scheduler")
"""Attributes in which schedulers keep inner schedulers."""


def scale_lr(optimizers: Sequence[torch.optim.Optimizer], schedulers: Sequence[Any], factor: float) -> str:
    """Multiplies all learning rates from now on; returns why that may not last, or nothing."""
    if not (math.isfinite(factor) and factor > 0):
        raise ValueError(f"lr_scale={factor!r}: give a factor above 0, such as 0.5")
    scaled: set[int] = set()
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for name in RATES:
                if group.get(name) is not None:
                    group[name] = _times(group[name], factor, scaled)
    strangers = []
    for one in _nested(schedulers):
        if not any(hasattr(one, name) for name in (*LISTS, *INNER)):
            strangers.append(type(one).__name__)
        for name in LISTS:
            rates = getattr(one, name, None)
            if isinstance(rates, list | tuple):
                setattr(one, name, type(rates)(_times(rate, factor, scaled) for rate in rates))
        for name in NUMBERS:
            rate = getattr(one, name, None)
            if rate is not None:
                setattr(one, name, _times(rate, factor, scaled))
    if strangers:
        return f"{', '.join(strangers)} may set its own learning rate again"
    return unknown_schedule(optimizers, schedulers)


def unknown_schedule(optimizers: Sequence[torch.optim.Optimizer], schedulers: Sequence[Any]) -> str:
    """The name of an optimizer whose scheduler is not known, and the way out; or nothing."""
    known: set[int] = set()
    for one in _nested(schedulers):
        if hasattr(one, "optimizer"):
            known.add(id(one.optimizer))
        elif not any(hasattr(one, name) for name in INNER):
            return ""  # the given scheduler is opaque: assume that it drives this one
    driven = [o for o in optimizers if id(o) not in known and any("initial_lr" in group for group in o.param_groups)]
    if not driven:
        return ""
    names = ", ".join(sorted({type(optimizer).__name__ for optimizer in driven}))
    return f"a scheduler that is not known here sets the learning rate of {names} again: pass scheduler= to attach"


def follow_schedule(
    schedulers: Sequence[Any],
    optimizers: Sequence[torch.optim.Optimizer],
    then_groups: Sequence[Sequence[dict[str, Any]]],
    then_schedulers: Sequence[Any],
) -> list[str]:
    """Sets every rate that left its schedule back to it; returns what was changed.

    `then` is a time when all was well. A loop may multiply the schedule's rate all the time, for a warm-up of its own:
    so the ratio that a rate had to its schedule then is the one it gets now.
    """
    changed = []
    for group, lr, wanted in _off_schedule(schedulers, optimizers, then_groups, then_schedulers):
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(wanted)
        else:
            group["lr"] = wanted
        changed.append(f"{lr:.4g} to {wanted:.4g}")
    return changed


def is_off_schedule(
    schedulers: Sequence[Any],
    optimizers: Sequence[torch.optim.Optimizer],
    then_groups: Sequence[Sequence[dict[str, Any]]],
    then_schedulers: Sequence[Any],
) -> bool:
    """Whether any rate left its schedule since then. Rates on a device are not read: that would wait for it."""
    found = _off_schedule(schedulers, optimizers, then_groups, then_schedulers, reads_device=False)
    return next(found, None) is not None


def schedule_change(schedulers: Sequence[Any], then_schedulers: Sequence[Any]) -> tuple[float, float] | None:
    """The scheduled rate then and now, where the schedule itself raised it by `JUMP` or more since; None where not."""
    found = None
    for scheduler, then in zip(schedulers, then_schedulers, strict=True):
        now, before = getattr(scheduler, "_last_lr", None), then.get("_last_lr") if isinstance(then, dict) else None
        if not isinstance(now, list | tuple) or not isinstance(before, list | tuple):
            continue
        for rate_now, rate_then in zip(now, before, strict=False):
            if not isinstance(rate_now, int | float) or not isinstance(rate_then, int | float) or not rate_then > 0:
                continue
            if rate_now >= JUMP * rate_then and (found is None or rate_now / rate_then > found[1] / found[0]):
                found = float(rate_then), float(rate_now)
    return found


def _off_schedule(
    schedulers: Sequence[Any],
    optimizers: Sequence[torch.optim.Optimizer],
    then_groups: Sequence[Sequence[dict[str, Any]]],
    then_schedulers: Sequence[Any],
    *,
    reads_device: bool = True,
) -> Iterator[tuple[dict[str, Any], float, float]]:
    """Each group whose rate left its schedule since then, its rate, and what the schedule wants."""
    for scheduler, then in zip(schedulers, then_schedulers, strict=True):
        optimizer, now = getattr(scheduler, "optimizer", None), getattr(scheduler, "_last_lr", None)
        before = then.get("_last_lr") if isinstance(then, dict) else None
        place = next((i for i, one in enumerate(optimizers) if one is optimizer), None)
        if place is None or not isinstance(now, list | tuple) or not isinstance(before, list | tuple):
            continue
        groups = zip(optimizers[place].param_groups, then_groups[place], now, before, strict=False)
        for group, was, scheduled_now, scheduled_then in groups:
            four = (group["lr"], was.get("lr"), scheduled_now, scheduled_then)
            if not reads_device and any(isinstance(rate, torch.Tensor) and rate.device.type != "cpu" for rate in four):
                continue
            rates = [_plain(rate) for rate in four]
            if any(rate is None or not rate > 0 for rate in rates):
                continue
            lr, lr_then, rate_now, rate_then = rates
            wanted = rate_now * lr_then / rate_then
            if abs(lr / wanted - 1.0) > OFF_SCHEDULE:
                yield group, lr, wanted


def _plain(rate: Any) -> Any:
    """A rate as a number, if it can be read without knowing more."""
    if isinstance(rate, torch.Tensor):
        return float(rate)
    return rate if isinstance(rate, int | float) else None


def _times(rate: Any, factor: float, scaled: set[int]) -> Any:
    if not isinstance(rate, torch.Tensor):
        return rate * factor
    if id(rate) not in scaled:  # one tensor may be the rate of several groups
        scaled.add(id(rate))
        rate.mul_(factor)
    return rate


def _nested(schedulers: Sequence[Any]) -> Iterator[Any]:
    """All schedulers, each once: one may be used in two places."""
    seen: set[int] = set()
    waiting = list(schedulers)
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        for name in INNER:
            inner = getattr(one, name, None)
            waiting += inner if isinstance(inner, Iterable) else [inner]
