"""`caboose.load_checkpoint`: loads the plan's checkpoint into a run. Imports torch when called."""

import contextlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from caboose.checkpoints import layout
from caboose.checkpoints.errors import CheckpointRefused
from caboose.checkpoints.plan import ResumePlan
from caboose.settings.options import as_schedulers

if TYPE_CHECKING:
    import torch

    from caboose.checkpoints.loading import LoadedCheckpoint

logger = logging.getLogger("caboose")


def load_checkpoint(
    plan: "ResumePlan | Path | str",
    model: "torch.nn.Module",
    optimizer: "torch.optim.Optimizer | Sequence[torch.optim.Optimizer]",
    *,
    scheduler: Any = None,
    scaler: Any = None,
    extra: Sequence[Any] | Mapping[str, Any] = (),
    allow_other_world: bool = False,
    strict: bool = True,
    scale_lr: bool = True,
) -> "LoadedCheckpoint | None":
    """Loads a plan's checkpoint, or one by its path, in place; call it on every rank, before `attach`.

    The model is already wrapped; the other arguments are those of `attach`. If the plan's checkpoint cannot be used
    after all, the next best is. None if there never was a checkpoint: the run is new. CheckpointRefused if there are
    some and none may be used, or if your own code wrote the one to load. Learning rates are multiplied by the plan's
    `lr_scale`, unless `scale_lr` is off.
    """
    import torch

    from caboose.checkpoints.exchange import Exchange
    from caboose.checkpoints.loading import load
    from caboose.checkpoints.run_state import RunState
    from caboose.rollback import learning_rates
    from caboose.tensors.shards import quiet_fsdp1

    paths = [str(plan)]
    if isinstance(plan, ResumePlan):
        if plan.checkpoint is None:
            if plan.is_new_run:
                return None
            raise CheckpointRefused(plan.rejected[0][0], f"{plan.rejected[0][1]}\n{plan.explain()}")
        paths = [plan.checkpoint, *plan.others]
    optimizers = [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else list(optimizer)
    schedulers = as_schedulers(scheduler, "load_checkpoint")
    state = RunState(model, optimizers, schedulers, scaler, extra)
    exchange = Exchange(600.0)
    refused: CheckpointRefused | None = None
    try:
        exchange.agree("looking", lambda: _give_names_back(paths) if exchange.rank == 0 else None)
        for path in map(Path, paths):
            if path.exists() and not layout.is_ours(path) and isinstance(plan, ResumePlan):
                raise CheckpointRefused(path, "Caboose did not write it; load it with the code that did")
            try:
                with quiet_fsdp1(model):
                    loaded = load(path, state, exchange, allow_other_world=allow_other_world, strict=strict)
                scale = plan.lr_scales.get(str(path), plan.lr_scale) if isinstance(plan, ResumePlan) else 1.0
                if scale_lr and scale != 1.0:
                    doubt = learning_rates.scale_lr(optimizers, schedulers, scale)
                    if doubt and exchange.rank == 0:
                        logger.warning("caboose: the learning rate may not stay scaled by %g: %s", scale, doubt)
                return loaded
            except CheckpointRefused as error:
                refused = refused or error
                if exchange.rank == 0:
                    logger.warning("caboose: not loaded: %s", error)
    finally:
        exchange.close()
    assert refused is not None
    raise refused


def _give_names_back(paths: Sequence[str]) -> None:
    """Completes what a killed save left half-way, where that is possible."""
    for directory in dict.fromkeys(Path(path).parent for path in paths):
        with contextlib.suppress(OSError):
            layout.give_names_back(directory)
