"""`caboose.hunt_nan`: a hunt without a monitor, on a model and a batch."""

from collections.abc import Sequence
from typing import Any

import torch

from caboose.hunting.hunter import Hunter
from caboose.hunting.result import HuntResult
from caboose.hunting.running import LossFunction
from caboose.trials import supported
from caboose.trials.progress import ProgressLine
from caboose.trials.sources import BatchSource, as_loader


class _NoBatches:
    """Where no loader is watched."""

    index = -1
    epoch = 0


def hunt_nan(
    model: torch.nn.Module,
    loss: LossFunction | None,
    batch: Any,
    *,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] = (),
    progress: bool | None = None,
) -> HuntResult:
    """Runs a batch with every module and operation watched, and names the number that became NaN or infinite first.

    `loss` is a criterion, or a function of (model, batch) or of (outputs, targets); None: the model's own loss, or the
    sum of its outputs. Of a loader, its first batch is taken. With `optimizer`, its state is looked at as well. On
    this rank alone, and everything is restored. Best called with the weights from before the bad step.
    """
    optimizers = [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else list(optimizer)
    supported.check_arguments("hunt_nan", model, loss, optimizers)
    with BatchSource("hunt_nan", as_loader(batch), "batch") as source:
        first = source.take(1)[0]
    with ProgressLine(1, is_shown=progress) as bar:
        bar.show("running the batch with every operation watched")
        return _hunted(model, optimizers, loss, first)


def _hunted(model: torch.nn.Module, optimizers: Sequence[Any], loss: LossFunction | None, first: Any) -> HuntResult:
    hunter = Hunter(model, optimizers, rank=0, is_kept=False, report=lambda _: None, is_logged=False)
    return hunter.hunt_now(0, loss, first, _NoBatches())
