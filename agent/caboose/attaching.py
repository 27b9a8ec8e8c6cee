"""`caboose.attach`: checks the arguments, builds the monitor, and starts it."""

import logging
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from caboose import identity, settings
from caboose.monitor import Monitor
from caboose.scalars import plain
from caboose_wire.messages import Scalar

if TYPE_CHECKING:
    import torch

logger = logging.getLogger("caboose")

_attached: "tuple[torch.nn.Module, Monitor] | None" = None


def attach(
    model: "torch.nn.Module",
    optimizer: "torch.optim.Optimizer | Sequence[torch.optim.Optimizer]",
    *,
    scheduler: Any = None,
    scaler: Any = None,
    job: str | None = None,
    endpoint: str | None = None,
    start_step: int = 0,
    rank: int | None = None,
    world_size: int | None = None,
    sample_every: int | None = None,
    overhead_budget: float | None = None,
    config: Mapping[str, Scalar] | None = None,
    num_classes: int | None = None,
) -> Monitor:
    """Begins to watch this rank; call it once on every rank, after DDP has wrapped the model.

    Rank, world size and the job's name come from torchrun's or Slurm's variables where they are not given.
    `scaler` is the GradScaler, if one is used: norms are then reported without its scale.
    `start_step` is the step a resumed run continues from. `config` and `num_classes` are kept for the record and
    for the diagnosis. A daemon that is not there is waited for in the background; a wrong argument raises here.
    """
    global _attached
    if settings.is_disabled(os.environ):
        return Monitor(None)
    try:
        import torch
    except ModuleNotFoundError as error:
        raise RuntimeError("caboose.attach needs torch, which is not installed here") from error
    from caboose.observer import Observer

    optimizers = _optimizers(optimizer)
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"attach(model=...): expected a torch.nn.Module, got {type(model).__name__}")
    if not isinstance(start_step, int) or start_step < 0:
        raise ValueError(f"attach(start_step={start_step!r}): give the step to continue from, 0 for a new run")
    if scheduler is not None and not hasattr(scheduler, "state_dict"):
        raise TypeError(f"attach(scheduler=...): expected an LR scheduler, got {type(scheduler).__name__}")
    if num_classes is not None and (not isinstance(num_classes, int) or num_classes < 2):
        raise ValueError(f"attach(num_classes={num_classes!r}): give a whole number of at least 2, or nothing")
    if scaler is not None and not hasattr(scaler, "is_enabled"):
        raise TypeError(f"attach(scaler=...): expected a torch.amp.GradScaler, got {type(scaler).__name__}")
    chosen = settings.resolve(os.environ, endpoint=endpoint, sample_every=sample_every, overhead_budget=overhead_budget)
    if rank is None and world_size is None and _has_process_group():
        rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    who = identity.resolve(os.environ, job=job, rank=rank, world=world_size)
    record = _record(config, num_classes)

    if _attached is not None and _attached[1].is_active:
        if _attached[0] is model:
            logger.info("caboose: this model is watched already")
            return _attached[1]
        logger.info("caboose: another model is watched in this process; it is let go for the new one")
        _attached[1].close()

    monitor = Monitor(who, start_step)
    observer = Observer(
        model,
        optimizers,
        clock=monitor.clock,
        protect=monitor.guard.protect,
        rank=who.rank,
        world=who.world,
        scheduler=scheduler,
        scaler=scaler,
    )
    monitor._start(observer, chosen, config=record, torch_version=str(torch.__version__), scheduler=scheduler)
    _attached = (model, monitor)
    if who.rank == 0:
        logger.info("caboose: watching job %r, %d ranks, reports go to %s", who.job, who.world, chosen.endpoint)
    return monitor


def _optimizers(given: Any) -> "list[torch.optim.Optimizer]":
    import torch

    optimizers = [given] if isinstance(given, torch.optim.Optimizer) else given
    if isinstance(optimizers, str) or not isinstance(optimizers, Sequence) or not optimizers:
        raise TypeError(
            f"attach(optimizer=...): expected a torch optimizer or a list of them, got {type(given).__name__}"
        )
    for number, optimizer in enumerate(optimizers):
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(
                f"attach(optimizer=...): element {number} is a {type(optimizer).__name__}, not a torch optimizer"
            )
    return list(optimizers)


def _has_process_group() -> bool:
    import torch.distributed

    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _record(config: Mapping[str, Scalar] | None, num_classes: int | None) -> dict[str, Scalar]:
    record: dict[str, Scalar] = {}
    if config is not None:
        if not isinstance(config, Mapping):
            raise TypeError(f"attach(config=...): expected a mapping of names to plain values, got {config!r}")
        if len(config) > 200:
            raise ValueError(f"attach(config=...): {len(config)} entries; the limit is 200")
        for name, value in config.items():
            record[str(name)[:256]] = plain(value)
    if num_classes is not None:
        record["num_classes"] = num_classes
    return record
