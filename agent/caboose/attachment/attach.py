"""`caboose.attach`: checks the arguments, builds the monitor, and starts it.

Design
------
A wrong argument raises. A lack of file descriptors, threads or memory does not: the monitor then waits for them (see
`monitor`), and the run goes on. Three options cannot wait, because all ranks must have them from the first step on or
the program relies on them: rollback `auto`, `skip_step` and checkpoints. With these a lack raises as well.
"""

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Never

from caboose.attachment import imports
from caboose.attachment.unwrapping import refuse_for_engine, unwrapped, unwrapped_parts
from caboose.components import Components, Shell
from caboose.monitor import Monitor
from caboose.observe import made_state
from caboose.report import identity, launch_secret, live_monitors, resources
from caboose.settings import environment
from caboose.settings.options import (
    Checkpoints,
    Rollback,
    Sampling,
    as_checkpoints,
    as_rollback,
    as_sampling,
    as_schedulers,
    refuse_unknown,
)
from caboose.tensors.scalars import plain
from caboose_wire.fields import Scalar
from caboose_wire.rollback import RollbackMode

if TYPE_CHECKING:
    import torch

    from caboose.observe.parts import Outline

logger = logging.getLogger("caboose")

MAX_CONFIG = 200

before_attach: list[Callable[[], None]] = []
"""Called at the start of every attach: a no-code launch gives way to a script that attaches."""


@dataclass(frozen=True, slots=True)
class Attached:
    """What this process watches."""

    outline: "Outline"
    monitor: Monitor
    is_auto: bool

    def has_models_of(self, outline: "Outline") -> bool:
        """Whether these are the models that are watched; each part with its name."""
        ours = [(name, id(model)) for name, model in _models(self.outline)]
        return ours == [(name, id(model)) for name, model in _models(outline)]


_attached: Attached | None = None
"""Until it is closed: then nothing of ours keeps the model alive."""
_has_attached = False
_blind: dict[str, str] = {}
"""What the attach that is under way cannot see, and why."""


_facts: dict[str, Scalar] = {}
"""What is known of the run that is being attached to, beside its model."""


@contextlib.contextmanager
def with_loader(loader: Any) -> Iterator[None]:
    """An attach in the block reports the size of this loader's batches and data."""
    from caboose.observe import facts

    with contextlib.suppress(Exception):  # a loader's length is the program's own code
        _facts.update(facts.of_loader(loader))
    try:
        yield
    finally:
        _facts.clear()


@contextlib.contextmanager
def blind_to(**reasons: str) -> Iterator[None]:
    """An attach in the block reports that these are not seen."""
    _blind.update(reasons)
    try:
        yield
    finally:
        _blind.clear()


def attach(
    model: "torch.nn.Module | Mapping[str, Any]",
    optimizer: "torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | Mapping[str, Any]",
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
    config: Mapping[str, Scalar] | None = None,
    num_classes: int | None = None,
    objective: str | None = None,
    rollback: RollbackMode | Rollback = "advise",
    checkpoints: "str | os.PathLike[str] | Checkpoints | None" = None,
    sampling: int | Sampling | None = None,
    hunt: bool | None = None,
    **removed: Never,
) -> Monitor:
    """Starts to watch this rank; call it once on every rank, after DDP or FSDP has wrapped the model.

    Called again with the same model and optimizers it returns the same monitor; with others, it closes that one and
    starts again. A missing daemon is no error: the agent keeps trying in the background. A wrong argument raises here.

    model, optimizer  of several models that are trained together, as a GAN: a mapping of their names to the models,
                      and one of the same names to their optimizers; `monitor.step` then takes a mapping of losses. The
                      first one's loss is also the job's. In place of a model: a list of models, or a tensor
    scheduler         the LR scheduler, or a list of all of them: a learning rate that a command scales stays scaled
                      only with schedulers that are known
    scaler            the GradScaler, if one is used: norms are reported without its scale
    extra             more objects with `state_dict` and `load_state_dict`, as an average of the weights: they are part
                      of snapshots and checkpoints
    job, rank, world_size
                      default: torchrun's or Slurm's variables
    endpoint          the daemon's address; default: CABOOSE_ENDPOINT, or tcp://127.0.0.1:5757
    start_step        the step that a resumed run continues from; `start_model_step`: the age of its weights, where
                      rollbacks made that another number
    config, num_classes
                      facts about the run, for the record and the diagnosis
    objective         "adversarial" or "reinforcement": no loss is meant to fall, and rules that assume it abstain;
                      default: CABOOSE_OBJECTIVE, or "supervised"
    rollback          "off", "advise" (report what would be done), "auto" (act, where the daemon is set to it too), or
                      `caboose.Rollback(...)` (docs/rollback.md)
    checkpoints       the directory for `monitor.checkpoint()`, or `caboose.Checkpoints(...)` (docs/checkpoints.md)
    sampling          the steps between two samples, or `caboose.Sampling(...)`; default: 100, and 1 % of a step
    hunt              keeps the last batch and runs it again, observed, when a number is not finite, at most three times
                      (docs/hunting.md); CABOOSE_HUNT=1 does the same
    """
    global _attached, _has_attached
    refuse_unknown(removed)
    for give_way in list(before_attach):
        give_way()
    if environment.is_disabled(os.environ):
        return Monitor(None)
    try:
        import torch
    except ModuleNotFoundError as error:
        raise RuntimeError("caboose.attach needs torch, which is not installed here") from error
    made_state.begin(imports.when_imported)

    allowed, written = as_rollback(rollback), as_checkpoints(checkpoints)
    cannot_wait = allowed.mode == "auto" or allowed.skip_step is not None or written is not None
    given = (model, optimizer, scheduler, scaler)
    outline: Outline | None
    try:
        outline, scheduler, scaler, engine = _outline(*given)
    except OSError as error:  # without a descriptor to open them with, our own modules cannot be imported
        _check_wait(error, cannot_wait=cannot_wait)
        outline = engine = None
    if not isinstance(start_step, int) or start_step < 0:
        raise ValueError(f"attach(start_step={start_step!r}): give the step to continue from, 0 for a new run")
    schedulers = as_schedulers(scheduler, "attach")
    if num_classes is not None and (not isinstance(num_classes, int) or num_classes < 2):
        raise ValueError(f"attach(num_classes={num_classes!r}): give a whole number of at least 2, or nothing")
    if scaler is not None and not hasattr(scaler, "is_enabled"):
        raise TypeError(f"attach(scaler=...): expected a torch.amp.GradScaler, got {type(scaler).__name__}")
    aim = environment.objective(os.environ, objective)
    if engine is not None:
        _refuse_for_engine(allowed, written)
    sampled, record = as_sampling(sampling), _record(config, num_classes)
    if rank is None and world_size is None and _has_process_group():
        rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()

    def settle() -> tuple[environment.Settings, identity.Identity]:
        chosen = environment.resolve(os.environ, endpoint=endpoint, sampling=sampled, hunt=hunt)
        who = identity.resolve(os.environ, job=job, rank=rank, world=world_size)
        who = replace(who, proof=launch_secret.proof(os.environ, who))
        if allowed.mode == "auto":
            from caboose.rollback import support

            chosen = environment.with_secret(chosen, os.environ)
            assert outline is not None, "auto cannot wait"
            support.check(outline.model, outline.optimizers, chosen, who.world)
        return chosen, who

    settled = None
    try:
        settled = settle()
    except (ValueError, OSError, ImportError) as error:
        _check_wait(error, cannot_wait=cannot_wait)
    before = _attached
    if before is not None and before.monitor.is_active and outline is not None:
        is_same_model = before.has_models_of(outline)
        if is_same_model and list(map(id, before.outline.optimizers)) == list(map(id, outline.optimizers)):
            if allowed.mode == "auto" and not before.is_auto:
                raise ValueError(
                    'attach(rollback="auto"): this model is watched already, by a monitor that may do less: attach '
                    'once, with rollback="auto", or close() the first monitor before'
                )
            logger.info("caboose: this model is watched already")
            return before.monitor
        what = "this model is watched with another optimizer" if is_same_model else "another model is watched"
        logger.info("caboose: %s in this process; that monitor is closed", what)
        before.monitor.close()

    live_monitors.settle()
    shell, blind, facts = Shell(start_step, start_model_step), dict(_blind), dict(_facts)

    def build_components() -> Components:
        from caboose.attachment.build import Request, build

        chosen, who = settled or settle()
        return build(
            Request(
                identity=who,
                settings=chosen,
                outline=outline or _outline(*given)[0],
                schedulers=schedulers,
                scaler=scaler,
                extra=extra,
                rollback=allowed,
                checkpoints=written,
                config=record,
                blind=blind,
                facts=facts,
                objective=aim,
            ),
            shell,
        )

    monitor = _started(build_components, shell, cannot_wait=cannot_wait)
    live_monitors.register(monitor)
    if outline is not None:
        _attached, _has_attached = Attached(outline, monitor, is_auto=allowed.mode == "auto"), True
        monitor.on_close = _forget_attached
    if settled is not None:
        _warn_uncommanded(settled[0])
    return monitor


def has_attached() -> bool:
    """Whether anything was attached to in this process."""
    return _has_attached


def _forget_attached(monitor: Monitor) -> None:
    global _attached
    if _attached is not None and _attached.monitor is monitor:
        _attached = None


def _warn_uncommanded(chosen: environment.Settings) -> None:
    if chosen.why_uncommanded:
        logger.warning(
            "caboose: rollback is auto here, but there is no secret to check commands with, so advise is in force: %s; "
            "or set CABOOSE_SECRET_FILE here and at the daemon",
            chosen.why_uncommanded,
        )


def _started(build_components: Callable[[], Components], shell: Shell, *, cannot_wait: bool) -> Monitor:
    """A monitor that watches; one that waits, where something is missing that it needs."""
    short = "" if cannot_wait else resources.shortage(resources.NUM_THREADS + 1)
    if not short:
        try:
            return Monitor(build_components(), shell)
        except Exception as error:  # noqa: BLE001 - raised again, unless waiting helps
            _check_wait(error, cannot_wait=cannot_wait)
            short = str(error)
    text = "caboose: this run is not watched for now, %s. It is tried again every %g s"
    logger.warning(text, short, resources.RETRY_SECONDS)
    return Monitor(None, shell, build_later=build_components)


def _check_wait(error: Exception, *, cannot_wait: bool) -> None:
    """Returns if this was a lack of resources, and the monitor may wait for them; else raises."""
    if not resources.is_shortage(error):
        raise error
    if cannot_wait:
        raise ValueError(
            'attach: rollback="auto", skip_step and checkpoints cannot wait for resources, and this process has too '
            f"few of them: {error}; raise `ulimit -n`, `ulimit -u` or `ulimit -v`"
        ) from error


def _outline(model: Any, optimizer: Any, scheduler: Any, scaler: Any) -> "tuple[Outline, Any, Any, Any]":
    """What is trained, without the wrappers of frameworks; then the scheduler, the scaler, and the engine or None.

    Raises where `attach` was given something else.
    """
    import torch

    from caboose.observe import parts

    if isinstance(model, parts.Outline):  # of the automatic attach
        if len(model.called) > 1:
            return model, scheduler, scaler, None
        model, optimizer = model.called[0], model.optimizers
    if isinstance(model, Mapping):
        return parts.given(*unwrapped_parts(model, optimizer)), scheduler, scaler, None
    if isinstance(optimizer, Mapping):
        raise TypeError(
            "attach(models, optimizers): with a mapping of optimizers, give a mapping of models with the same keys, "
            f"not a {type(model).__name__}"
        )
    given = unwrapped(model, optimizer, scheduler, scaler)
    optimizers = _optimizers(given.optimizers)
    if not isinstance(given.model, torch.nn.Module):
        raise TypeError(f"attach(model=...): expected a torch.nn.Module, got {type(model).__name__}")
    return parts.Outline.of_model(given.model, optimizers), given.scheduler, given.scaler, given.engine


def _models(outline: "Outline") -> "Iterator[tuple[str, torch.nn.Module]]":
    if not outline.parts:
        yield from (("", model) for model in outline.called)
    for part in outline.parts:
        yield from ((part.name, model) for model in part.models)


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


def _refuse_for_engine(rollback: Rollback, checkpoints: Checkpoints | None) -> None:
    if rollback.mode == "auto":
        refuse_for_engine('rollback="auto"')
    if rollback.skip_step is not None:
        refuse_for_engine(f"rollback=Rollback(skip_step={rollback.skip_step!r})")
    if checkpoints is not None:
        refuse_for_engine("checkpoints=...")


def _has_process_group() -> bool:
    import torch.distributed

    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _record(config: Mapping[str, Scalar] | None, num_classes: int | None) -> dict[str, Scalar]:
    record: dict[str, Scalar] = {}
    if config is not None:
        if not isinstance(config, Mapping):
            raise TypeError(f"attach(config=...): expected a mapping of names to plain values, got {config!r}")
        if len(config) > MAX_CONFIG:
            raise ValueError(f"attach(config=...): {len(config)} entries; the limit is {MAX_CONFIG}")
        for name, value in config.items():
            record[str(name)[:256]] = plain(value)
    if num_classes is not None:
        record["num_classes"] = num_classes
    return record
