"""The changes that can be tried: what `name=value` does to model, optimizer, schedule and step."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from caboose.rollback.learning_rates import scale_lr

WARMUP = "warmup"


class BadChange(ValueError):
    """A change that cannot be made; the message is one line with the way out."""


@dataclass(frozen=True)
class Change:
    """One change: a number, a factor on what there is, or a word."""

    name: str
    value: float = 0.0
    is_factor: bool = False
    word: str = ""

    def __str__(self) -> str:
        return f"{self.name}={self.word or f'{self.value:g}' + 'x' * self.is_factor}"

    def of(self, now: float) -> float:
        """The new value for the present one."""
        return now * self.value if self.is_factor else self.value


@dataclass
class Arm:
    """One side of the comparison, before its first step."""

    model: torch.nn.Module
    optimizers: list[torch.optim.Optimizer]
    schedulers: list[Any]
    loss_fn: Any
    max_norm: float | None = None
    max_value: float | None = None
    warmup: int = 0
    made: list[str] = field(default_factory=list)
    """What was changed, with the values before."""


def parse(text: str) -> Change:
    """`lr=0.5x`, `lr=1e-4`, `clip=1.0`, `optimizer=AdamW`."""
    name, equals, value = text.partition("=")
    name, value = name.strip(), value.strip()
    if not equals or name not in CHANGES:
        raise BadChange(f"--change {text!r}: give NAME=VALUE, NAME one of {', '.join(CHANGES)}")
    if name == "optimizer":
        return Change(name, word=value)
    is_factor = value.endswith("x")
    try:
        number = float(value.removesuffix("x"))
    except ValueError:
        raise BadChange(f"--change {text!r}: {value!r} is no number, and no factor such as 0.5x") from None
    if not math.isfinite(number) or number < 0 or (is_factor and number == 0):
        raise BadChange(f"--change {text!r}: give a finite number of 0 or more")
    return Change(name, number, is_factor)


def apply(change: Change, arm: Arm) -> None:
    """Makes the change; BadChange where there is nothing to change."""
    CHANGES[change.name](change, arm)


def _lr(change: Change, arm: Arm) -> None:
    now = max(float(group["lr"]) for optimizer in arm.optimizers for group in optimizer.param_groups)
    wanted = change.of(now)
    if now <= 0 or wanted <= 0:
        raise BadChange(f"--change {change}: the learning rate is {now:g}, and must stay above 0")
    scale_lr(arm.optimizers, arm.schedulers, wanted / now)
    arm.made.append(f"lr {now:g} to {wanted:g}")


def _hyper(name: str) -> Callable[[Change, Arm], None]:
    def change_group(change: Change, arm: Arm) -> None:
        key = "betas" if name == "momentum" and _has(arm, "betas") else name
        if not _has(arm, key):
            raise BadChange(f"--change {change}: {type(arm.optimizers[0]).__name__} has no {name}")
        for group in (group for optimizer in arm.optimizers for group in optimizer.param_groups):
            if key == "betas":
                was, group["betas"] = group["betas"][0], (change.of(group["betas"][0]), group["betas"][1])
            else:
                was, group[key] = group[key], change.of(float(group[key]))
        arm.made.append(f"{name} {was:g} to {change.of(was):g}")

    return change_group


def _has(arm: Arm, key: str) -> bool:
    return all(key in group for optimizer in arm.optimizers for group in optimizer.param_groups)


def _clip(change: Change, arm: Arm) -> None:
    if change.is_factor or change.value == 0:
        raise BadChange(f"--change {change}: give the largest norm, such as clip=1.0")
    arm.max_norm = change.value
    arm.made.append(f"gradients clipped to a norm of {change.value:g}")


def _clip_value(change: Change, arm: Arm) -> None:
    if change.is_factor or change.value == 0:
        raise BadChange(f"--change {change}: give the largest value, such as clip_value=0.5")
    arm.max_value = change.value
    arm.made.append(f"gradients clipped to values of {change.value:g}")


def _dropout(change: Change, arm: Arm) -> None:
    found = [module for module in arm.model.modules() if isinstance(module, torch.nn.modules.dropout._DropoutNd)]
    if not found:
        raise BadChange(f"--change {change}: the model has no dropout module")
    was = found[0].p
    for module in found:
        module.p = min(change.of(module.p), 1.0)
    arm.made.append(f"dropout {was:g} to {found[0].p:g}")


def _label_smoothing(change: Change, arm: Arm) -> None:
    if not hasattr(arm.loss_fn, "label_smoothing"):
        raise BadChange(f"--change {change}: the loss has no label_smoothing; torch.nn.CrossEntropyLoss has")
    was, arm.loss_fn.label_smoothing = arm.loss_fn.label_smoothing, min(change.value, 1.0)
    arm.made.append(f"label smoothing {was:g} to {arm.loss_fn.label_smoothing:g}")


def _warmup(change: Change, arm: Arm) -> None:
    arm.warmup = int(change.value)
    arm.made.append(f"linear warm-up over {arm.warmup} steps")


def _optimizer(change: Change, arm: Arm) -> None:
    made = getattr(torch.optim, change.word, None)
    if not (isinstance(made, type) and issubclass(made, torch.optim.Optimizer)) or len(arm.optimizers) != 1:
        raise BadChange(f"--change {change}: name a class of torch.optim, for a run with one optimizer")
    old = arm.optimizers[0]
    make: Callable[..., torch.optim.Optimizer] = made
    groups: list[dict[str, Any]] = [
        {key: group[key] for key in ("params", "lr", "weight_decay") if key in group} for group in old.param_groups
    ]
    arm.optimizers = [make(groups)]
    for scheduler in arm.schedulers:
        scheduler.optimizer = arm.optimizers[0]
    arm.made.append(f"optimizer {type(old).__name__} to {change.word}, without its state")


CHANGES: dict[str, Callable[[Change, Arm], None]] = {
    "lr": _lr,
    "weight_decay": _hyper("weight_decay"),
    "momentum": _hyper("momentum"),
    "clip": _clip,
    "clip_value": _clip_value,
    "dropout": _dropout,
    "label_smoothing": _label_smoothing,
    WARMUP: _warmup,
    "optimizer": _optimizer,
}


def as_list(value: Any) -> list[Any]:
    """One object, several, or None, as a list."""
    if value is None:
        return []
    return list(value) if isinstance(value, Sequence) else [value]
