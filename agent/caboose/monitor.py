"""What `attach` returns: the few calls a training loop makes.

Design
------
The monitor joins the parts: hooks (`observer`) and clock (`phases`) fill in what a step showed, `step` closes the
record and leaves it for the sender's thread. Every public call passes the guard, so none of them raises. A
disabled monitor is the same class with nothing behind it, and needs no torch.

Where rollback is `auto` there is a brake as well (`rollback.brake`). It is outside the guard: a rank that has agreed to
act must act, even if watching has failed, and its two exceptions are meant to end the run.
"""

import resource
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec

from caboose.governor import Governor
from caboose.guard import Guard, left_out
from caboose.observe.loader import Skip, Watched
from caboose.observe.phases import PhaseClock
from caboose.report.exits import close_at_exit
from caboose.report.hello import introduce
from caboose.report.identity import Identity
from caboose.report.record import Note, StepRecord
from caboose.report.sender import Sender
from caboose.report.step_count import StepCount
from caboose.tensors.scalars import as_number, kept_count, plain, plain_item
from caboose_wire import Bye, Command, Event, Heartbeat, Hello, Message, StepReport, Terms
from caboose_wire.fields import MAX_SCALARS, Scalar
from caboose_wire.rollback import RollbackMode

if TYPE_CHECKING:
    import torch

    from caboose.checkpoints.checkpointer import Checkpointer, SavedCheckpoint
    from caboose.hunting.hunter import Hunter
    from caboose.hunting.result import HuntResult
    from caboose.observe.observer import Observer
    from caboose.rollback.brake import Brake
    from caboose.rollback.skip_step import StepSkipper
    from caboose.settings import Settings

BROKEN_SECONDS = 5.0
"""How long a background save is waited for when the run ends by an error: its other ranks may be gone."""

Batch = TypeVar("Batch")


class Monitor:
    """Watches one rank. Made by `caboose.attach`."""

    def __init__(self, identity: Identity | None, start_step: int = 0, start_model_step: int | None = None) -> None:
        self.identity = identity
        self.clock = PhaseClock()
        self.guard = Guard(on_trip=self._take_out_hooks)
        self._skip = Skip()
        self._observer: Observer | None = None
        self._brake: Brake | None = None
        self._skipper: StepSkipper | None = None
        self._checkpointer: Checkpointer | None = None
        self._hunter: Hunter | None = None
        """Where hunting is on; else one is made when somebody calls for a hunt."""
        self._make_hunter: Callable[[], Hunter] | None = None
        self._sender: Sender | None = None
        self._governor = Governor(1, 1.0)
        self._scheduler: Any = None
        self._hello: Hello | None = None
        self._count = StepCount(start_step, start_model_step, lambda error: self.guard.failed("step", error))
        self._seq = 0
        self._num_boundaries = 0
        self._sender_seconds = 0.0
        self._boundary = time.monotonic()
        self._is_suspicious = False
        self._is_closed = identity is None
        # Bound once, so that the loop pays for no lookup and no wrapper is made per call.
        self._guarded_step = self.guard.protect("step", self._finish_step)
        self._guarded_event = self.guard.protect("event", self._send_event)

    def _start(
        self,
        observer: "Observer",
        settings: "Settings",
        *,
        config: Mapping[str, Scalar],
        torch_version: str,
        scheduler: Any = None,
        rollback: RollbackMode = "off",
        brake: "Brake | None" = None,
        skipper: "StepSkipper | None" = None,
        checkpointer: "Checkpointer | None" = None,
        hunter: "Hunter | None" = None,
        make_hunter: "Callable[[], Hunter] | None" = None,
    ) -> None:
        assert self.identity is not None, "a disabled monitor is never started"
        self._observer = observer
        self._scheduler = scheduler
        self._governor = Governor(settings.sample_every, settings.overhead_budget)
        self._hello = introduce(
            self.identity,
            observer,
            start_step=self._count.step,
            torch_version=torch_version,
            config=config,
            rollback=rollback,
        )
        observer.begin(is_sampled=True)
        self._brake, self._skipper, self._checkpointer = brake, skipper, checkpointer
        self._hunter, self._make_hunter = hunter, make_hunter
        self._sender = Sender(
            settings.endpoint,
            self._hello,
            self._heartbeat,
            curve=settings.curve,
            on_word=self._hear,
            beside=None if brake is None else brake.holdings,
        )
        self._sender.start()
        close_at_exit(self)

    @property
    def is_active(self) -> bool:
        """Whether steps are being reported."""
        return not (self._is_closed or self.guard.is_tripped)

    def _is_with(self, optimizers: "Sequence[torch.optim.Optimizer]") -> bool:
        """Whether these very optimizers are the ones it was attached with."""
        return self._observer is not None and list(map(id, self._observer.optimizers)) == list(map(id, optimizers))

    @property
    def model_step(self) -> int:
        """The age of the weights: the step, less what rollbacks took back."""
        return self._count.model_step

    @property
    def current_step(self) -> int:
        """The last step that has ended, as it is reported."""
        return self._count.step

    @property
    def num_rollbacks(self) -> int:
        """How often this run went back since it was attached."""
        return self._count.num_rollbacks

    @property
    def _attempt(self) -> int:
        return (self.identity.attempt if self.identity is not None else 0) + self._count.num_rollbacks

    @property
    def overhead(self) -> float:
        """The agent's share of the step, on the training thread and in the sender's, as it measures it itself."""
        return self._governor.share

    @property
    def num_queued(self) -> int:
        """Reports that wait to be sent."""
        return self._sender.num_queued if self._sender is not None else 0

    def step(
        self,
        loss: "torch.Tensor | float | None" = None,
        *,
        step: int | None = None,
        metrics: Mapping[str, float] | None = None,
        num_samples: int | None = None,
        num_tokens: int | None = None,
    ) -> None:
        """The step boundary: call it once per optimizer step, on every rank.

        Under gradient accumulation `loss` is the mean of the micro-batches. `step` overrides the count of
        optimizer steps, `num_samples` weighs this rank's loss in the mean over ranks.
        """
        if self._is_closed:
            return
        number = self._count.advance(step)
        self._guarded_step(loss, metrics, num_samples, num_tokens)
        if self._hunter is not None and self._hunter.bad_step is not None:
            self._hunter.hunt_alone(self._brake)
        if self._brake is not None:
            self._brake.at_boundary(number)

    def _finish_step(
        self,
        loss: "torch.Tensor | float | None",
        metrics: Mapping[str, float] | None,
        num_samples: int | None,
        num_tokens: int | None,
    ) -> None:
        observer, sender, identity = self._observer, self._sender, self.identity
        if observer is None or sender is None or identity is None:
            return
        self._num_boundaries += 1
        try:
            self._report(observer, sender, identity, loss, metrics, num_samples, num_tokens)
        finally:  # a step that could not be told is over all the same
            is_suspicious, self._is_suspicious = self._is_suspicious, False
            observer.begin(
                is_sampled=is_suspicious or self._governor.is_sampled(self._num_boundaries),
                takes_norms=is_suspicious or self._governor.takes_norms(self._num_boundaries),
            )

    def _report(
        self,
        observer: "Observer",
        sender: Sender,
        identity: Identity,
        loss: "torch.Tensor | float | None",
        metrics: Mapping[str, float] | None,
        num_samples: int | None,
        num_tokens: int | None,
    ) -> None:
        self._seq += 1
        self._boundary = time.monotonic()
        phases = self.clock.take()
        agent_seconds = self.guard.take_seconds()
        other_seconds = 0.0 if self._brake is None else self._brake.guard.take_seconds()
        if self._skipper is not None:
            other_seconds += self._skipper.guard.take_seconds()
        if self._hunter is not None:
            other_seconds += self._hunter.guard.take_seconds()
        held = observer.batches.held
        seen = observer.take(loss)
        if self._hunter is not None:
            self._hunter.end_step(self._count.step, seen, loss, observer.batches)
        record = StepRecord(
            attempt=identity.attempt + self._count.num_rollbacks,
            seq=self._seq,
            step=self._count.step,
            model_step=self.model_step,
            time=time.time(),
            num_samples=kept_count(num_samples),
            num_tokens=kept_count(num_tokens),
            num_scheduler_steps=getattr(self._scheduler, "last_epoch", None),
            phases=phases,
            metrics=_numbers(metrics) if metrics else {},
            agent_seconds=agent_seconds + other_seconds,
            sample_every=self._governor.sample_every,
            norm_every=self._governor.norm_every,
            num_skipped=self._skipper.num_skipped if self._skipper is not None else 0,
            num_layers=len(observer.table),
            num_modules=len(observer.modules) if seen.is_sampled else 0,
            part=observer.part,
            batch=observer.batches.describe(),
            host_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 if seen.is_sampled else None,
            device_bytes=observer.device_bytes() if seen.is_sampled else None,
            device_phases=self.clock.device_phases.take() if self.clock.device_phases is not None else None,
            seen=seen,
            on_bad_number=lambda report: self._look_at_the_batch(report, held),
        )
        if self._skipper is not None:
            self._skipper.end_step()
        if self._checkpointer is not None:
            self._tell_of_checkpoints()
        if observer.take_news():
            self._introduce_again(
                layers=observer.table.layers,
                groups=observer.groups,
                modules=observer.modules,
                visible=observer.visible,
                blind=observer.blind,
            )
        sender.put(record)
        beside, self._sender_seconds = sender.cpu_seconds - self._sender_seconds, sender.cpu_seconds
        self._governor.account(agent_seconds + beside, phases.total, was_sampled=seen.is_sampled)

    def _went_back(self, model_step: int) -> None:
        """All ranks have just gone back: what follows is a new attempt, with weights of that age."""
        self._count.went_back(model_step)
        if self._hello is not None and self._sender is not None:
            self._hello = msgspec.structs.replace(self._hello, attempt=self._attempt, start_step=self._count.step)
            self._sender.put(Note(self._hello))

    def _keep_schedule(self) -> None:
        """The schedule belongs to a framework whose counter cannot go back: neither may the schedule."""
        if self._brake is not None:
            self._brake.can_rewind = False

    def _send(self, message: Message) -> None:
        """Leaves a message for the sender; on any thread."""
        if self._sender is not None:
            self._sender.put(Note(message))

    def _hear(self, word: Command | Terms) -> None:
        """The daemon said something; on the sender's thread."""
        if self._brake is not None:
            self._brake.hear(word)
        if isinstance(word, Terms) and self._checkpointer is not None:
            self.guard.protect("checkpoint", self._checkpointer.heed)(word)

    def _look_at_the_batch(self, report: StepReport, held: Any) -> StepReport:
        """A step went wrong: its batch is looked at, if it is still there, and the next step is looked at closely."""
        from caboose.observe.batches import after_an_incident

        self._is_suspicious = True
        if report.batch is None:
            return report
        return msgspec.structs.replace(report, batch=after_an_incident(report.batch, held))

    def _introduce_again(self, **changes: Any) -> None:
        if self._hello is not None and self._sender is not None:
            self._hello = hello = msgspec.structs.replace(self._hello, **changes)
            self._sender.introduce_again(lambda: hello)

    def watch(self, loader: Iterable[Batch]) -> "Watched[Batch]":
        """The same loader, with the wait for each batch timed and the batches counted."""
        if self._observer is not None and self._hello is not None:
            from caboose.observe import facts

            told = {**self._hello.facts, **facts.of_loader(loader)}
            if told != self._hello.facts:
                self._introduce_again(facts=told)
        return Watched(loader, self)

    def _begin_epoch(self) -> None:
        if self._observer is not None:
            self._observer.batches.begin_epoch()

    def _see_batch(self, batch: Any) -> None:
        if self._observer is not None:
            self._observer.batches.see(batch)
        if self._hunter is not None:
            self._hunter.see(batch)

    @property
    def can_checkpoint(self) -> bool:
        """Whether `checkpoint` has somewhere to write to."""
        return self._checkpointer is not None

    def checkpoint(self, *, raise_errors: bool = False) -> "SavedCheckpoint | None":
        """Saves a checkpoint of the whole run into `checkpoint_dir`. All ranks call it, at the same step.

        What went wrong is in the result (`state`, `error`), and raised only if that is asked for. Where Caboose is
        disabled, nothing is saved and None returned.
        """
        if self.identity is None:
            return None
        if self._checkpointer is None:
            raise RuntimeError("monitor.checkpoint(): attach was given no checkpoint_dir to write to")
        saved = self._checkpointer.save(self._count.step, self.model_step, raise_errors=raise_errors)
        if saved.state != "writing":
            self._tell_of_checkpoint(saved)
        return saved

    def _tell_of_checkpoints(self) -> None:
        """What was saved in the background is told once it is whole."""
        while self._checkpointer is not None and (saved := self._checkpointer.poll()) is not None:
            self._tell_of_checkpoint(saved)

    def _tell_of_checkpoint(self, saved: "SavedCheckpoint") -> None:
        if self.identity is None or self.identity.rank != 0:
            return
        fields: dict[str, Any] = {"step": saved.step, "model_step": saved.model_step, "path": str(saved.path)}
        fields |= {"ours": True, "world": saved.world, "seconds": saved.seconds, "num_bytes": saved.num_bytes}
        if saved.state == "saved":
            self.event("checkpoint", **fields)
        else:
            self.event("checkpoint_failed", step=saved.step, path=str(saved.path), error=saved.error)

    def validation(self, loss: "torch.Tensor | float | None" = None, /, **metrics: float) -> None:
        """Reports a validation result, with whatever metrics it had."""
        fields = metrics if loss is None else {"loss": loss, **metrics}
        self.event("validation", **fields)

    def hunt_nan(self, loss_fn: "Callable[..., Any] | None" = None, batch: Any = None) -> "HuntResult | None":
        """Runs a batch again on this rank, with every module and operation watched, and names what broke first.

        Without `batch` it is the last one that the model was given, which is kept with `attach(..., hunt=True)`;
        without `loss_fn` (as in `caboose.inspect`: `loss_fn(model, batch)`, or a criterion) the model's own loss, or
        else the sum of its outputs. Best called before `optimizer.step()`, while the weights are sound. Never raises,
        and leaves everything as it was; None where Caboose is disabled.
        """
        if self._is_closed or self._observer is None or self._make_hunter is None:
            return None
        hunter = self._hunter or self._make_hunter()
        return hunter.hunt_now(self._count.step, loss_fn, batch, self._observer.batches)

    def event(self, kind: str, /, **fields: Any) -> None:
        """Declares something the daemon should know: a data switch, the end of warm-up, a saved checkpoint."""
        if not self._is_closed:
            self._guarded_event(kind, fields)

    def _send_event(self, kind: str, fields: Mapping[str, Any]) -> None:
        if self._sender is None or self.identity is None:
            return
        event = Event(
            attempt=self._attempt,
            step=self._count.step,
            time=time.time(),
            kind=str(kind)[:64],
            fields={str(name)[:256]: _read(value) for name, value in fields.items()},
        )
        self._sender.put(Note(event))

    def _heartbeat(self) -> Heartbeat:
        return Heartbeat(
            attempt=self._attempt,
            step=self._count.step,
            time=time.time(),
            since_step_seconds=time.monotonic() - self._boundary,
            num_dropped=self._sender.num_dropped if self._sender else 0,
            num_failures=self.guard.num_failures,
            utilization=self._observer.utilization.read() if self._observer is not None else None,
            state="disabled" if self.guard.is_tripped else "training",
            phase=self.clock.current,
        )

    def close(self, error: BaseException | None = None) -> None:
        """Takes out every hook and says good-bye; calling it again does nothing.

        Takes under a second, unless a checkpoint is still being written in the background: that is waited for.

        `error` is why the run ends, if it ends because of one; at exit that is known without being told.
        """
        if self._is_closed:
            return
        if self._checkpointer is not None:
            is_broken = error is not None or getattr(sys, "last_value", None) is not None
            self._checkpointer.wait(BROKEN_SECONDS if is_broken else None)  # what was asked for is worth the wait
            self.guard.protect("checkpoint", self._tell_of_checkpoints)()
        self._is_closed = True
        try:
            if self._brake is not None:
                self._brake.close()
            if self._skipper is not None:
                self._skipper.close()
            if self._hunter is not None:
                self._hunter.close()
            self._take_out_hooks()
        finally:
            if self._sender is not None and self.identity is not None:
                error = error or getattr(sys, "last_value", None)
                self._sender.close(
                    Bye(
                        attempt=self._attempt,
                        step=self._count.step,
                        time=time.time(),
                        error="" if error is None else f"{type(error).__name__}: {error}"[:4096],
                    )
                )

    def _take_out_hooks(self) -> None:
        """Of what watches; what leaves out updates stays, since the other ranks go on leaving them out."""
        if self._observer is not None:
            self._observer.close()

    def abandon(self) -> None:
        """In a forked child: the socket and the job's story belong to the parent."""
        self._is_closed = True
        self.guard.is_tripped = True
        if self._sender is not None:
            self._sender.abandon()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(error)


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Those of a step's metrics that are numbers."""
    if len(metrics) > MAX_SCALARS:
        left_out(f"a metric beyond the first {MAX_SCALARS} of a step")
    found = {str(name)[:256]: as_number(value, "a metric") for name, value in islice(metrics.items(), MAX_SCALARS)}
    return {name: value for name, value in found.items() if value is not None}


def _read(value: Any) -> Scalar:
    """An event's value; events are rare, so a device may be waited for."""
    return plain_item(value) if hasattr(value, "item") else plain(value)
