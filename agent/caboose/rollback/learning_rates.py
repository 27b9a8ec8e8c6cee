"""Scales the learning rate of a run so that it stays scaled, whatever schedule it follows.

Design
------
A schedule makes each rate from numbers of its own: the rates at its beginning, upper and lower bounds, or the rate of
the step before. All of these are multiplied, in the groups and in the schedulers, however they are nested; then every
later rate is the factor times what it would have been. A scheduler that keeps its rates elsewhere will write its own
over ours at its next step, and so will one that nobody has told of: that is said, not hidden. Every scheduler of torch
leaves `initial_lr` in the groups that it drives, so a group that has one and no scheduler that is known is seen.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

RATES = ("lr", "initial_lr", "max_lr", "min_lr", "swa_lr")
"""What of a parameter group is its learning rate, or what schedulers make one from."""
LISTS = ("base_lrs", "max_lrs", "min_lrs", "_last_lr")
NUMBERS = ("eta_min", "default_min_lr")
INNER = ("_schedulers", "schedulers", "scheduler")
"""Where schedulers keep those that they are made of."""


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
    """That a scheduler which was not given drives one of these optimizers, and the way out; or nothing."""
    known: set[int] = set()
    for one in _nested(schedulers):
        if hasattr(one, "optimizer"):
            known.add(id(one.optimizer))
        elif not any(hasattr(one, name) for name in INNER):
            return ""  # whatever it drives, it was given
    driven = [o for o in optimizers if id(o) not in known and any("initial_lr" in group for group in o.param_groups)]
    if not driven:
        return ""
    names = ", ".join(sorted({type(optimizer).__name__ for optimizer in driven}))
    return f"a scheduler that is not known here sets the learning rate of {names} again: pass scheduler= to attach"


def _times(rate: Any, factor: float, scaled: set[int]) -> Any:
    if not isinstance(rate, torch.Tensor):
        return rate * factor
    if id(rate) not in scaled:  # one tensor may be the rate of several groups
        scaled.add(id(rate))
        rate.mul_(factor)
    return rate


def _nested(schedulers: Sequence[Any]) -> Iterator[Any]:
    """All schedulers, each once: a schedule may use one in two places."""
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
