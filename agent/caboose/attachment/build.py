"""Builds the components of a monitor and starts them.

Design
------
Everything runs on the training thread, before training, or at a step boundary where attach had to wait for resources.
The sender's thread starts last, when nothing can be refused any more; a component that is refused leaves no hook,
thread or process group behind.
"""

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from caboose.components import Components, Shell
from caboose.governor import Governor
from caboose.guard import Guard
from caboose.observe.observer import Observer
from caboose.observe.parts import Outline
from caboose.report.identity import Identity
from caboose.report.session import Session, build_hello
from caboose.report.step_reporter import StepReporter
from caboose.report.words import Words
from caboose.settings.environment import Settings
from caboose.settings.options import Checkpoints, Rollback
from caboose_wire import Command, Terms
from caboose_wire.fields import Scalar

if TYPE_CHECKING:
    from caboose.checkpoints.checkpointer import Checkpointer
    from caboose.hunting.hunter import Hunter
    from caboose.rollback.brake import Brake
    from caboose.rollback.skip_step import StepSkipper


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The checked arguments of an attach."""

    identity: Identity
    settings: Settings
    outline: Outline
    schedulers: list[Any]
    scaler: Any
    extra: Sequence[Any] | Mapping[str, Any]
    rollback: Rollback
    checkpoints: Checkpoints | None
    config: Mapping[str, Scalar]
    blind: Mapping[str, str]
    """What this way to attach cannot see, and why."""
    facts: Mapping[str, Scalar]
    """What it knows of the run."""
    objective: str


def build(request: Request, shell: Shell) -> Components:
    """Places the hooks, starts the threads and returns the components."""
    who, rollback = request.identity, request.rollback
    guard, clock = shell.guard, shell.clock
    session = Session(who, shell.count)
    report_event = guard.protect("event", session.event)
    with contextlib.ExitStack() as undo:

        def observe(outline: Outline) -> Observer:
            observer = Observer(
                outline,
                clock=clock,
                protect=guard.protect,
                rank=who.rank,
                world=who.world,
                schedulers=request.schedulers,
                scaler=request.scaler,
                samples_compiled=request.settings.samples_compiled,
            )
            observer.blind.update(request.blind)
            observer.facts.update(request.facts)
            observer.facts["objective"] = request.objective
            return observer

        observer = observe(request.outline)
        guard.on_trip = observer.retire
        undo.callback(observer.close)
        skipper = checkpointer = brake = hunter = None
        if rollback.skip_step is not None:
            skipper = _skipper(request, observer)
            undo.callback(skipper.close)
        if request.checkpoints is not None:
            checkpointer = _checkpointer(request, request.checkpoints, report_event)
            undo.callback(checkpointer.close)

        def make_hunter() -> "Hunter":
            return _hunter(request, report_event)

        if request.settings.hunt:
            hunter = make_hunter()
            undo.callback(hunter.close)
        if rollback.mode == "auto":
            from caboose.rollback.enable import engage

            brake = engage(
                session,
                shell.skip,
                request.outline.model,
                request.outline.optimizers,
                request.settings,
                rollback,
                schedulers=request.schedulers,
                scaler=request.scaler,
                extra=request.extra,
                checkpointer=checkpointer,
                hunter=hunter,
            )
            undo.callback(brake.close)
        governor = Governor(request.settings.sample_every, request.settings.overhead_budget)
        reporter = StepReporter(
            session,
            observer,
            clock,
            guard,
            governor,
            scheduler=request.schedulers[0] if request.schedulers else None,
            skipper=skipper,
            on_observed=None if hunter is None else hunter.end_step,
            other_guards=[part.guard for part in (brake, skipper, hunter) if part is not None],
        )
        guard.on_trip = reporter.retire
        mode = "advise" if request.settings.why_uncommanded else rollback.mode
        words = Words(request.settings.endpoint, mode, is_quiet=request.settings.quiet) if who.rank == 0 else None
        session.open(
            build_hello(
                session,
                observer,
                torch_version=str(torch.__version__),
                config=request.config,
                rollback=mode,
            ),
            request.settings.endpoint,
            curve=request.settings.curve,
            heartbeat=reporter.heartbeat,
            on_message=_receiver(brake, checkpointer, guard),
            with_heartbeat=None if brake is None else brake.holdings,
            words=words,
        )
        undo.pop_all()
    return Components(
        session=session,
        governor=governor,
        observer=observer,
        observe=observe,
        reporter=reporter,
        make_hunter=make_hunter,
        hunter=hunter,
        brake=brake,
        skipper=skipper,
        checkpointer=checkpointer,
    )


def _skipper(request: Request, observer: Observer) -> "StepSkipper":
    from caboose.rollback.skip_step import StepSkipper

    mode = request.rollback.skip_step
    assert mode is not None, "only made where it is set"
    if request.identity.world > 1 and not observer.is_reduced:
        raise ValueError(
            f"Rollback(skip_step={mode!r}): all ranks must skip the same updates, by a norm that is equal on all of "
            "them: wrap the model in DistributedDataParallel or FSDP first, or leave skip_step out"
        )
    return StepSkipper(mode, request.outline.optimizers, scaler=request.scaler)


def _checkpointer(
    request: Request, checkpoints: Checkpoints, report_event: Callable[[str, Mapping[str, Any]], Any]
) -> "Checkpointer":
    from caboose.checkpoints.checkpointer import Checkpointer, SavedCheckpoint

    def report(saved: SavedCheckpoint) -> None:
        if request.identity.rank == 0:
            report_event(*saved.as_event())

    return Checkpointer(
        os.fspath(checkpoints.directory),
        request.outline.model,
        request.outline.optimizers,
        request.schedulers,
        request.scaler,
        request.extra,
        rank=request.identity.rank,
        world=request.identity.world,
        keep=checkpoints.keep,
        is_async=checkpoints.in_background,
        report=report,
    )


def _hunter(request: Request, report_event: Callable[[str, Mapping[str, Any]], Any]) -> "Hunter":
    from caboose.hunting.hunter import Hunter

    return Hunter(
        request.outline.model,
        request.outline.optimizers,
        rank=request.identity.rank,
        is_kept=request.settings.hunt,
        is_scaled=request.scaler is not None and request.scaler.is_enabled(),
        report=lambda result: report_event("hunt", result.fields()),
    )


def _receiver(
    brake: "Brake | None", checkpointer: "Checkpointer | None", guard: Guard
) -> Callable[[Command | Terms], None]:
    """Passes on the daemon's messages; called on the sender's thread."""
    apply_terms = None if checkpointer is None else guard.protect("checkpoint", checkpointer.apply_terms)

    def receive(message: Command | Terms) -> None:
        if brake is not None:
            brake.receive(message)
        if apply_terms is not None and isinstance(message, Terms):
            apply_terms(message)

    return receive
