"""What `attach` returns: the few calls a training loop makes.

Design
------
The monitor joins the parts: hooks (`observer`) and clock (`phases`) fill in what a step showed, `step` closes the
record and leaves it for the sender's thread. Every public call passes the guard, so none of them raises. A
disabled monitor is the same class with nothing behind it, and needs no torch.
"""

import atexit
import logging
import os
import resource
import sys
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import msgspec

from caboose.governor import Governor
from caboose.guard import Guard
from caboose.identity import Identity
from caboose.phases import PhaseClock
from caboose.record import EventRecord, StepRecord
from caboose.scalars import plain, plain_item
from caboose.sender import Sender
from caboose.version import __version__
from caboose_wire import Bye, Event, Heartbeat, Hello, StepReport
from caboose_wire.messages import Scalar

if TYPE_CHECKING:
    import torch

    from caboose.observer import Observer
    from caboose.settings import Settings

logger = logging.getLogger("caboose")

Batch = TypeVar("Batch")


class Monitor:
    """Watches one rank. Made by `caboose.attach`."""

    def __init__(self, identity: Identity | None, start_step: int = 0) -> None:
        self.identity = identity
        self.clock = PhaseClock()
        self.guard = Guard(on_trip=self._take_out_hooks)
        self._observer: Observer | None = None
        self._sender: Sender | None = None
        self._governor = Governor(1, 1.0)
        self._scheduler: Any = None
        self._hello: Hello | None = None
        self._step = start_step
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
    ) -> None:
        assert self.identity is not None, "a disabled monitor is never started"
        self._observer = observer
        self._scheduler = scheduler
        self._governor = Governor(settings.sample_every, settings.overhead_budget)
        identity = self.identity
        self._hello = Hello(
            job=identity.job,
            rank=identity.rank,
            world=identity.world,
            host=identity.host[:256],
            pid=identity.pid,
            incarnation=identity.incarnation,
            launch=identity.launch,
            attempt=identity.attempt,
            agent_version=__version__,
            torch_version=torch_version,
            started=time.time(),
            start_step=self._step,
            layers=observer.table.layers,
            groups=observer.groups,
            modules=observer.modules,
            wrapper=observer.wrapper,
            visible=observer.visible,
            blind=observer.blind,
            config=dict(config),
            facts=observer.facts,
        )
        observer.begin(is_sampled=True)
        self._sender = Sender(settings.endpoint, self._hello, self._heartbeat, curve=settings.curve)
        self._sender.start()
        _close_at_exit(self)

    @property
    def is_active(self) -> bool:
        """Whether steps are being reported."""
        return not (self._is_closed or self.guard.is_tripped)

    @property
    def overhead(self) -> float:
        """The agent's share of the step, on the training thread and in the sender's, as it measures it itself."""
        return self._governor.share

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
        if not self._is_closed:
            self._guarded_step(loss, step, metrics, num_samples, num_tokens)

    def _finish_step(
        self,
        loss: "torch.Tensor | float | None",
        step: int | None,
        metrics: Mapping[str, float] | None,
        num_samples: int | None,
        num_tokens: int | None,
    ) -> None:
        observer, sender, identity = self._observer, self._sender, self.identity
        if observer is None or sender is None or identity is None:
            return
        self._step = self._step + 1 if step is None else max(int(step), self._step)
        self._seq += 1
        self._boundary = time.monotonic()
        phases = self.clock.take()
        agent_seconds = self.guard.take_seconds()
        held = observer.batches.held
        seen = observer.take(loss)
        record = StepRecord(
            attempt=identity.attempt,
            seq=self._seq,
            step=self._step,
            model_step=self._step,
            time=time.time(),
            num_samples=num_samples,
            num_tokens=num_tokens,
            num_scheduler_steps=getattr(self._scheduler, "last_epoch", None),
            phases=phases,
            metrics={str(name): float(value) for name, value in metrics.items()} if metrics else {},
            agent_seconds=agent_seconds,
            sample_every=self._governor.sample_every,
            norm_every=self._governor.norm_every,
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
        if observer.has_new_modules:
            self._introduce_again(modules=observer.modules)
        sender.put(record)
        self._num_boundaries += 1
        governor, number = self._governor, self._num_boundaries
        beside, self._sender_seconds = sender.cpu_seconds - self._sender_seconds, sender.cpu_seconds
        governor.account(agent_seconds + beside, phases.total, was_sampled=seen.is_sampled)
        is_suspicious, self._is_suspicious = self._is_suspicious, False
        observer.begin(
            is_sampled=is_suspicious or governor.is_sampled(number),
            takes_norms=is_suspicious or governor.takes_norms(number),
        )

    def _look_at_the_batch(self, report: StepReport, held: Any) -> StepReport:
        """A step went wrong: its batch is looked at, if it is still there, and the next step is looked at closely."""
        from caboose.batches import after_an_incident

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
            from caboose import facts

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

    def validation(self, loss: "torch.Tensor | float | None" = None, /, **metrics: float) -> None:
        """Reports a validation result, with whatever metrics it had."""
        fields = metrics if loss is None else {"loss": loss, **metrics}
        self.event("validation", **fields)

    def event(self, kind: str, /, **fields: Any) -> None:
        """Declares something the daemon should know: a data switch, the end of warm-up, a saved checkpoint."""
        if not self._is_closed:
            self._guarded_event(kind, fields)

    def _send_event(self, kind: str, fields: Mapping[str, Any]) -> None:
        if self._sender is None or self.identity is None:
            return
        event = Event(
            attempt=self.identity.attempt,
            step=self._step,
            time=time.time(),
            kind=str(kind)[:64],
            fields={str(name)[:256]: _read(value) for name, value in fields.items()},
        )
        self._sender.put(EventRecord(event))

    def _heartbeat(self) -> Heartbeat:
        return Heartbeat(
            attempt=self.identity.attempt if self.identity else 0,
            step=self._step,
            time=time.time(),
            since_step_seconds=time.monotonic() - self._boundary,
            num_dropped=self._sender.num_dropped if self._sender else 0,
            num_failures=self.guard.num_failures,
            utilization=self._observer.utilization.read() if self._observer is not None else None,
            state="disabled" if self.guard.is_tripped else "training",
        )

    def close(self, error: BaseException | None = None) -> None:
        """Takes out every hook and says good-bye; takes under a second, and calling it again does nothing.

        `error` is why the run ends, if it ends because of one; at exit that is known without being told.
        """
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._take_out_hooks()
        finally:
            if self._sender is not None and self.identity is not None:
                error = error or getattr(sys, "last_value", None)
                self._sender.close(
                    Bye(
                        attempt=self.identity.attempt,
                        step=self._step,
                        time=time.time(),
                        error="" if error is None else f"{type(error).__name__}: {error}"[:4096],
                    )
                )

    def _take_out_hooks(self) -> None:
        if self._observer is not None:
            self._observer.close()

    def _abandon(self) -> None:
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


class Watched(Generic[Batch]):
    """A loader whose waits are timed; everything else about it is the loader's own."""

    def __init__(self, loader: Iterable[Batch], monitor: Monitor) -> None:
        self._loader = loader
        self._monitor = monitor

    def __iter__(self) -> Iterator[Batch]:
        monitor = self._monitor
        mark = monitor.guard.protect("watch", monitor.clock.mark)
        see = monitor.guard.protect("watch", monitor._see_batch)
        monitor.guard.protect("watch", monitor._begin_epoch)()
        mark("data")
        for batch in self._loader:
            mark("other")
            see(batch)
            yield batch
            mark("data")
        mark("other")

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]  # a loader without a length raises its own TypeError

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def _read(value: Any) -> Scalar:
    """An event's value; events are rare, so a device may be waited for."""
    return plain_item(value) if hasattr(value, "item") else plain(value)


_live: "weakref.WeakSet[Monitor]" = weakref.WeakSet()


def _close_at_exit(monitor: Monitor) -> None:
    if not _live:
        atexit.register(_close_all)
    _live.add(monitor)


def _close_all() -> None:
    for monitor in list(_live):
        try:
            monitor.close()
        except Exception as error:  # noqa: BLE001 - the interpreter is ending; the job's exit code is its own
            logger.debug("caboose: closing failed: %r", error)


def _abandon_in_child() -> None:
    for monitor in list(_live):
        monitor._abandon()


os.register_at_fork(after_in_child=_abandon_in_child)
