"""`caboose.attach`: checks the arguments, builds the monitor, and starts it."""

import contextlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from caboose import settings
from caboose.governor import Governor
from caboose.guard import Guard
from caboose.monitor import Monitor, Parts
from caboose.observe.loader import BatchSkip
from caboose.observe.phases import PhaseClock
from caboose.observe.schedulers import listed
from caboose.report import identity, live_monitors
from caboose.report.session import Session, build_hello
from caboose.report.step_count import StepCount
from caboose.report.step_reporter import StepReporter
from caboose.tensors.scalars import plain
from caboose_wire import Command, Terms
from caboose_wire.fields import Scalar
from caboose_wire.rollback import RollbackMode

if TYPE_CHECKING:
    import torch

    from caboose.checkpoints.checkpointer import Checkpointer
    from caboose.hunting.hunter import Hunter
    from caboose.rollback.brake import Brake

logger = logging.getLogger("caboose")

MODES: tuple[RollbackMode, ...] = ("off", "advise", "auto")
"""What may be done to a run, from the least to the most."""

before_attach: list[Callable[[], None]] = []
"""Called at the start of every attach: a no-code launch gives way to a script that attaches."""


@dataclass(frozen=True, slots=True)
class Attached:
    """What this process watches."""

    model: "torch.nn.Module"
    optimizers: "list[torch.optim.Optimizer]"
    monitor: Monitor
    is_auto: bool


_attached: Attached | None = None


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
    for give_way in list(before_attach):
        give_way()
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

    if _attached is not None and _attached.monitor.is_active:
        is_same_model = _attached.model is model
        if is_same_model and list(map(id, _attached.optimizers)) == list(map(id, optimizers)):
            if rollback == "auto" and not _attached.is_auto:
                raise ValueError(
                    'attach(rollback="auto"): this model is watched already, by a monitor that may do less: attach '
                    'once, with rollback="auto", or close() the first monitor before'
                )
            logger.info("caboose: this model is watched already")
            return _attached.monitor
        what = "this model is watched with another optimizer" if is_same_model else "another model is watched"
        logger.info("caboose: %s in this process; that monitor is closed", what)
        _attached.monitor.close()

    guard = Guard(on_trip=lambda: observer.close())
    clock, skip = PhaseClock(), BatchSkip()
    session = Session(who, StepCount(start_step, start_model_step, lambda error: guard.failed("step", error)))
    report_event = guard.protect("event", session.event)
    with contextlib.ExitStack() as undo:  # a refusal leaves neither hook nor thread behind
        observer = Observer(
            model,
            optimizers,
            clock=clock,
            protect=guard.protect,
            rank=who.rank,
            world=who.world,
            schedulers=schedulers,
            scaler=scaler,
        )
        undo.callback(observer.close)
        skipper = checkpointer = brake = hunter = None
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
                report=lambda saved: report_event(*saved.as_event()) if who.rank == 0 else None,
            )
            undo.callback(checkpointer.close)

        def make_hunter() -> "Hunter":
            from caboose.hunting.hunter import Hunter

            return Hunter(
                model,
                optimizers,
                rank=who.rank,
                is_kept=chosen.hunt,
                is_scaled=scaler is not None and scaler.is_enabled(),
                report=lambda result: report_event("hunt", result.fields()),
            )

        if chosen.hunt:
            hunter = make_hunter()
            undo.callback(hunter.close)
        if rollback == "auto":
            from caboose.rollback.budget import Limits
            from caboose.rollback.enable import engage

            brake = engage(
                session,
                skip,
                model,
                optimizers,
                chosen,
                schedulers=schedulers,
                scaler=scaler,
                extra=extra,
                limits=Limits(max_rollbacks=rollback_budget, cool_steps=rollback_cooldown),
                lr_policy=lr_policy,
                can_rewind=True,
                snapshot_every=snapshot_every,
                snapshot_keep=snapshot_keep,
                max_host_gb=max_host_gb,
                dedupe=snapshot_dedupe,
                checkpointer=checkpointer,
                hunter=hunter,
            )
            undo.callback(brake.close)
        governor = Governor(chosen.sample_every, chosen.overhead_budget)
        reporter = StepReporter(
            session,
            observer,
            clock,
            guard,
            governor,
            scheduler=schedulers[0] if schedulers else None,
            skipper=skipper,
            on_observed=None if hunter is None else hunter.end_step,
            other_guards=[part.guard for part in (brake, skipper, hunter) if part is not None],
        )
        session.open(
            build_hello(session, observer, torch_version=str(torch.__version__), config=record, rollback=rollback),
            chosen.endpoint,
            curve=chosen.curve,
            heartbeat=reporter.heartbeat,
            on_message=_receiver(brake, checkpointer, guard),
            with_heartbeat=None if brake is None else brake.holdings,
        )
        undo.pop_all()
    monitor = Monitor(
        Parts(
            session=session,
            guard=guard,
            clock=clock,
            governor=governor,
            observer=observer,
            reporter=reporter,
            skip=skip,
            make_hunter=make_hunter,
            hunter=hunter,
            brake=brake,
            skipper=skipper,
            checkpointer=checkpointer,
        )
    )
    live_monitors.register(monitor, model)
    _attached = Attached(model, optimizers, monitor, is_auto=brake is not None)
    if who.rank == 0:
        logger.info(
            "caboose: watching job %r, %d ranks, reports go to %s, rollback is %s here",
            who.job,
            who.world,
            chosen.endpoint,
            rollback,
        )
    return monitor


def _receiver(
    brake: "Brake | None", checkpointer: "Checkpointer | None", guard: Guard
) -> Callable[[Command | Terms], None]:
    """Hands the daemon's messages on; called on the sender's thread."""
    apply_terms = None if checkpointer is None else guard.protect("checkpoint", checkpointer.apply_terms)

    def receive(message: Command | Terms) -> None:
        if brake is not None:
            brake.receive(message)
        if apply_terms is not None and isinstance(message, Terms):
            apply_terms(message)

    return receive


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
