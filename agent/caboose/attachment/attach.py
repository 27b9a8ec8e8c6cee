"""`caboose.attach`: checks the arguments, builds the monitor, and starts it."""

import contextlib
import logging
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from caboose import settings
from caboose.monitor import Monitor
from caboose.observe.schedulers import listed
from caboose.report import identity
from caboose.tensors.scalars import plain
from caboose_wire.fields import Scalar
from caboose_wire.rollback import RollbackMode

if TYPE_CHECKING:
    import torch

    from caboose.hunting.hunter import Hunter

logger = logging.getLogger("caboose")

MODES: tuple[RollbackMode, ...] = ("off", "advise", "auto")
"""What may be done to a run, from the least to the most."""

_attached: "tuple[torch.nn.Module, Monitor] | None" = None


def attach(
    model: "torch.nn.Module",
    optimizer: "torch.optim.Optimizer | Sequence[torch.optim.Optimizer]",
    *,
    scheduler: Any = None,
    scaler: Any = None,
    extra: "Sequence[Any] | Mapping[str, Any]" = (),
    job: str | None = None,
    endpoint: str | None = None,
    start_step: int = 0,
    start_model_step: int | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    sample_every: int | None = None,
    overhead_budget: float | None = None,
    config: Mapping[str, Scalar] | None = None,
    num_classes: int | None = None,
    rollback: RollbackMode = "advise",
    rollback_budget: int = 3,
    rollback_cooldown: int = 200,
    lr_policy: Literal["keep", "rewind"] = "keep",
    snapshot_every: int = 50,
    snapshot_keep: int = 3,
    max_host_gb: float | None = None,
    snapshot_dedupe: bool = False,
    skip_step: Literal["nonfinite", "outlier"] | None = None,
    checkpoint_dir: "str | os.PathLike[str] | None" = None,
    checkpoint_keep: int = 3,
    checkpoint_async: bool = False,
    hunt: bool | None = None,
) -> Monitor:
    """Begins to watch this rank; call it once on every rank, after DDP has wrapped the model.

    Called again with the same model and optimizers it returns the same monitor; with others, it begins anew with those.

    Rank, world size and the job's name come from torchrun's or Slurm's variables where they are not given.
    `scheduler` is the LR scheduler, or a list of all: a rate that is scaled stays so only where they are known.
    `scaler` is the GradScaler, if one is used: norms are then reported without its scale.
    `start_step` is the step a resumed run continues from, `start_model_step` the age of its weights, where rollbacks
    made that another. `config` and `num_classes` are kept for the record and
    for the diagnosis. A daemon that is not there is waited for in the background; a wrong argument raises here.

    What may be done to the run (docs/rollback.md):

    rollback          nothing (`off`); say what would be done (`advise`); or, where the daemon is set to it too, take
                      all ranks back to an earlier state after a loss spike (`auto`)
    rollback_budget   rollbacks a day that are allowed; `rollback_cooldown` steps lie between two at least, and between
                      two changes of the learning rate
    lr_policy         whether the schedule goes on after a rollback (`keep`) or goes back (`rewind`)
    extra             further objects with `state_dict` and `load_state_dict` that go back too, as an average of weights
    snapshot_every    steps between two snapshots; the newest `snapshot_keep` are held, and an older one
    max_host_gb       memory that snapshots may take on this host; `snapshot_dedupe` divides them among the ranks of a
                      replicated model
    skip_step         leaves out updates whose gradient norm is not finite (`nonfinite`), or an `outlier` as well; the
                      norm is that of `clip_grad_norm_`, and after three steps without one it is off, with a warning
    checkpoint_dir    where `monitor.checkpoint()` writes, in the background if `checkpoint_async`; the newest
                      `checkpoint_keep` are kept
    hunt              keeps the last batch, and runs it again under watch when a number is not finite, three times at
                      most (docs/hunting.md); CABOOSE_HUNT=1 does the same
    """
    global _attached
    if settings.is_disabled(os.environ):
        return Monitor(None)
    try:
        import torch
    except ModuleNotFoundError as error:
        raise RuntimeError("caboose.attach needs torch, which is not installed here") from error
    from caboose.observe.observer import Observer

    optimizers = _optimizers(optimizer)
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"attach(model=...): expected a torch.nn.Module, got {type(model).__name__}")
    if not isinstance(start_step, int) or start_step < 0:
        raise ValueError(f"attach(start_step={start_step!r}): give the step to continue from, 0 for a new run")
    schedulers = listed(scheduler, "attach")
    if num_classes is not None and (not isinstance(num_classes, int) or num_classes < 2):
        raise ValueError(f"attach(num_classes={num_classes!r}): give a whole number of at least 2, or nothing")
    if scaler is not None and not hasattr(scaler, "is_enabled"):
        raise TypeError(f"attach(scaler=...): expected a torch.amp.GradScaler, got {type(scaler).__name__}")
    for name, value in (("rollback_budget", rollback_budget), ("rollback_cooldown", rollback_cooldown)):
        if not isinstance(value, int) or value < 0:
            raise ValueError(f"attach({name}={value!r}): give a whole number, 0 or more")
    if rollback not in MODES:
        raise ValueError(f"attach(rollback={rollback!r}): use one of {', '.join(map(repr, MODES))}")
    chosen = settings.resolve(
        os.environ, endpoint=endpoint, sample_every=sample_every, overhead_budget=overhead_budget, hunt=hunt
    )
    if rank is None and world_size is None and _has_process_group():
        rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    who = identity.resolve(os.environ, job=job, rank=rank, world=world_size)
    record = _record(config, num_classes)
    if rollback == "auto":
        from caboose.rollback import support

        support.check(model, optimizers, chosen, who.world)

    if _attached is not None and _attached[1].is_active:
        if _attached[0] is model and _attached[1]._is_with(optimizers):
            if rollback == "auto" and _attached[1]._brake is None:
                raise ValueError(
                    'attach(rollback="auto"): this model is watched already, by a monitor that may do less: attach '
                    'once, with rollback="auto", or close() the first monitor before'
                )
            logger.info("caboose: this model is watched already")
            return _attached[1]
        what = "this model is watched with another optimizer" if _attached[0] is model else "another model is watched"
        logger.info("caboose: %s in this process; it is let go for the new one", what)
        _attached[1].close()

    monitor = Monitor(who, start_step, start_model_step)
    with contextlib.ExitStack() as undo:  # a refusal leaves neither hook nor thread behind
        observer = Observer(
            model,
            optimizers,
            clock=monitor.clock,
            protect=monitor.guard.protect,
            rank=who.rank,
            world=who.world,
            schedulers=schedulers,
            scaler=scaler,
        )
        undo.callback(observer.close)
        skipper = checkpointer = brake = None
        if skip_step is not None:
            from caboose.rollback.skip_step import StepSkipper

            if who.world > 1 and not observer.is_reduced:
                raise ValueError(
                    f"attach(skip_step={skip_step!r}): all ranks must leave out the same steps, by a norm that "
                    "is equal on all of them: wrap the model in DistributedDataParallel or FSDP first, or leave it out"
                )
            skipper = StepSkipper(skip_step, optimizers, scaler=scaler)
            undo.callback(skipper.close)
        if checkpoint_dir is not None:
            from caboose.checkpoints.checkpointer import Checkpointer

            checkpointer = Checkpointer(
                os.fspath(checkpoint_dir),
                model,
                optimizers,
                schedulers,
                scaler,
                extra,
                rank=who.rank,
                world=who.world,
                keep=checkpoint_keep,
                is_async=checkpoint_async,
            )
            undo.callback(checkpointer.close)
        if rollback == "auto":
            from caboose.rollback.budget import Limits
            from caboose.rollback.enable import engage

            brake = engage(
                monitor,
                model,
                optimizers,
                chosen,
                schedulers=schedulers,
                scaler=scaler,
                extra=extra,
                limits=Limits(max_rollbacks=rollback_budget, cool_steps=rollback_cooldown),
                lr_policy=lr_policy,
                snapshot_every=snapshot_every,
                snapshot_keep=snapshot_keep,
                max_host_gb=max_host_gb,
                dedupe=snapshot_dedupe,
            )
            undo.callback(brake.close)

        def make_hunter() -> "Hunter":
            from caboose.hunting.hunter import Hunter

            return Hunter(
                model,
                optimizers,
                rank=who.rank,
                is_kept=chosen.hunt,
                is_scaled=scaler is not None and scaler.is_enabled(),
                tell=lambda result: monitor.event("hunt", **result.fields()),
            )

        hunter = make_hunter() if chosen.hunt else None
        if hunter is not None:
            undo.callback(hunter.close)
        monitor._start(
            observer,
            chosen,
            config=record,
            torch_version=str(torch.__version__),
            scheduler=schedulers[0] if schedulers else None,
            rollback=rollback,
            brake=brake,
            skipper=skipper,
            checkpointer=checkpointer,
            hunter=hunter,
            make_hunter=make_hunter,
        )
        undo.pop_all()
    _attached = (model, monitor)
    if who.rank == 0:
        logger.info(
            "caboose: watching job %r, %d ranks, reports go to %s, rollback is %s here",
            who.job,
            who.world,
            chosen.endpoint,
            rollback,
        )
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
