"""Trains one side of the comparison for some steps.

Design
------
Both sides are made anew by the user's function and start from the same checkpoint, the same random numbers and the same
batches in the same order. So the losses of one step belong together, and their difference shows the change with most of
the noise of batches gone. Batches are read in this process, without the loader's workers.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from caboose.trials.sources import BatchSource
from caboose.trials.trial import Trial
from caboose.trying.changes import Arm, Change, apply, as_list
from caboose.trying.starting import start_from

TOOL = "try"
VALIDATION_BATCHES = 50


@dataclass(frozen=True)
class Trained:
    """What one side did."""

    losses: list[float]
    norms: list[float]
    """Of the gradient, before clipping."""
    validation: float | None
    changes: list[str]
    start: str
    seconds: float
    broke_at: int | None
    """The first step with a loss that was not finite; the training ended there."""

    def as_json(self) -> dict[str, Any]:
        return {
            "losses": [loss if math.isfinite(loss) else None for loss in self.losses],
            "norms": [norm if math.isfinite(norm) else None for norm in self.norms],
            "validation": self.validation,
            "changes": self.changes,
            "start": self.start,
            "seconds": self.seconds,
            "broke_at": self.broke_at,
        }


def train(
    make_parts: Callable[[], dict[str, Any]],
    changes: Sequence[Change],
    *,
    num_steps: int,
    checkpoint: Path | None,
    seed: int,
    show: Callable[[int], None],
) -> Trained:
    """Trains so many steps with these changes; none for the side without."""
    torch.manual_seed(seed)
    parts = make_parts()
    optimizers, schedulers = as_list(parts.get("optimizer")), as_list(parts.get("scheduler"))
    if not optimizers:
        raise ValueError("try needs the optimizer; return it as 'optimizer'")
    arm = Arm(parts["model"], optimizers, schedulers, parts["loss_fn"])
    start = "new weights" if checkpoint is None else start_from(checkpoint, arm.model, optimizers, schedulers)
    for change in changes:
        apply(change, arm)
    began = time.monotonic()
    source = BatchSource(TOOL, parts["loader"])
    trial = Trial(TOOL, arm.model, arm.loss_fn, arm.optimizers, split=parts.get("split"))
    with trial, source:
        trial.train()
        torch.manual_seed(seed)
        losses, norms = _steps(trial, arm, _endless(source), num_steps, show)
        broke_at = next((step for step, loss in enumerate(losses, 1) if not math.isfinite(loss)), None)
        validation = None if broke_at is not None else _validated(trial, parts.get("validation_loader"))
    return Trained(losses, norms, validation, arm.made, start, time.monotonic() - began, broke_at)


def _steps(
    trial: Trial, arm: Arm, batches: Iterator[Any], num_steps: int, show: Callable[[int], None]
) -> tuple[list[float], list[float]]:
    losses: list[float] = []
    norms: list[float] = []
    for step in range(1, num_steps + 1):
        losses.append(trial.backward(next(batches)))
        gradients = [p for p in trial.parameters if p.grad is not None]
        limit = math.inf if arm.max_norm is None else arm.max_norm
        norms.append(float(torch.nn.utils.clip_grad_norm_(gradients, limit)))
        if not math.isfinite(losses[-1]):
            break
        if arm.max_value is not None:
            torch.nn.utils.clip_grad_value_(gradients, arm.max_value)
        _step(trial, arm, step)
        show(step)
    return losses, norms


def _step(trial: Trial, arm: Arm, step: int) -> None:
    """One step of the optimizers, with the warm-up's rate where there is one."""
    share = min(1.0, step / arm.warmup) if arm.warmup else 1.0
    groups = [group for optimizer in arm.optimizers for group in optimizer.param_groups]
    rates = [group["lr"] for group in groups]
    for group in groups:
        group["lr"] = group["lr"] * share
    trial.step()
    for group, rate in zip(groups, rates, strict=True):
        group["lr"] = rate
    for scheduler in arm.schedulers:
        if not isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            scheduler.step()


def _endless(source: BatchSource) -> Iterator[Any]:
    """Passes over the loader, one after the other."""
    while True:
        is_empty = True
        for batch in source.pass_over():
            is_empty = False
            yield batch
        if is_empty:
            raise ValueError("try(loader=...): the loader gives no batch")


def _validated(trial: Trial, loader: Any) -> float | None:
    """The mean loss over the validation loader, in eval mode; None without one."""
    if loader is None:
        return None
    was_training = trial.model.training
    trial.model.eval()
    with BatchSource(TOOL, loader, "validation_loader") as source:
        values = [trial.measure(batch) for batch, _ in zip(source.pass_over(), range(VALIDATION_BATCHES), strict=False)]
    trial.model.train(was_training)
    return math.fsum(values) / len(values) if values else None
