"""The training loop that most drills use, with hooks for their faults."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import caboose
from caboose_drills.data import Task
from caboose_drills.run import DrillRun

Loss = Callable[[Tensor, Tensor], Tensor]
Spoil = Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean over all samples, or over all positions of all samples."""
    return F.cross_entropy(outputs.flatten(0, -2), targets.flatten())


def warm_up_then_cosine(step: int, steps: int, warm_up: int) -> float:
    """The factor on the learning rate at a step counted from 0, for LambdaLR."""
    if step < warm_up:
        return (step + 1) / warm_up
    return 0.05 + 0.475 * (1.0 + math.cos(math.pi * min(1.0, (step - warm_up) / max(1, steps - warm_up))))


def fit(
    run: DrillRun,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    task: Task,
    *,
    loss: Loss | None = None,
    batch: int = 64,
    loader: Iterable[tuple[Tensor, Tensor]] | None = None,
    scheduler: Any = None,
    clip: float | None = None,
    validate_every: int = 100,
    start_step: int = 0,
    until: int | None = None,
    spoil: Spoil | None = None,
    before_step: Callable[[int], None] | None = None,
    before_update: Callable[[int], None] | None = None,
    after_update: Callable[[int], None] | None = None,
    **attach: Any,
) -> None:
    """Trains up to step `until` (`run.steps` unless given), from the one after `start_step`; steps count from 1.

    `spoil` may change a step's inputs and targets, `before_step` anything before its forward, `before_update` the
    gradients (after all-reduce and clipping), `after_update` the weights. `loader` stands in for the task's own
    batches; `validate_every=0` never validates. What else is given goes to `attach`.
    """
    criterion: Loss = loss or (cross_entropy if task.num_classes is not None else F.mse_loss)
    model = run.wrap(model)
    monitor = run.attach(
        model,
        optimizer,
        **{"scheduler": scheduler, "num_classes": task.num_classes, "start_step": start_step, **attach},
    )
    batches = task.batches(run, batch) if loader is None else loader
    step, last = start_step, run.steps if until is None else until
    while step < last:
        for inputs, targets in monitor.watch(batches):
            step += 1
            if before_step is not None:
                before_step(step)
            if spoil is not None:
                inputs, targets = spoil(step, inputs, targets)
            value = criterion(model(inputs), targets)
            optimizer.zero_grad()
            value.backward()  # type: ignore[no-untyped-call]  # torch gives no types
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            if before_update is not None:
                before_update(step)
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
            if after_update is not None:
                after_update(step)
            monitor.step(value, num_samples=len(inputs))
            if validate_every and step % validate_every == 0:
                validate(monitor, model, task, criterion)
            run.progress(step)
            if step >= last:
                break


@torch.no_grad()
def validate(monitor: caboose.Monitor, model: nn.Module, task: Task, loss: Loss) -> None:
    """Reports loss and, where there are classes, accuracy on the held-out samples; leaves the mode as it was."""
    was_training = model.training
    model.eval()
    inputs, targets = task.held_out
    outputs = model(inputs)
    metrics = {}
    if task.num_classes is not None:
        metrics["accuracy"] = float((outputs.argmax(dim=-1) == targets).float().mean())
    monitor.validation(float(loss(outputs, targets)), **metrics)
    model.train(was_training)
