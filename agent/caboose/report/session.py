"""One rank's connection to the daemon: its identity, its step count, its Hello and its sender.

Design
------
The monitor, the step reporter and the brake share one session, and need nothing else of each other. `send` may be
called on any thread; the rest is called on the training thread. Without a sender (before `open`) nothing is sent.
"""

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from caboose.report.batching import Outgoing
from caboose.report.connection import CurveKeys
from caboose.report.exits import Exit
from caboose.report.identity import Identity
from caboose.report.record import Note
from caboose.report.run_summary import RunSummary, RunTotals
from caboose.report.sender import Sender
from caboose.report.signals import GOODBYE_SECONDS
from caboose.report.step_count import StepCount
from caboose.report.words import Advice, Words
from caboose.tensors.scalars import plain, plain_item
from caboose.version import __version__
from caboose_wire import Bye, Command, Event, Heartbeat, Hello, Message, Terms, Verdict
from caboose_wire.fields import Scalar
from caboose_wire.rollback import RollbackMode

CLOSE_SECONDS = 0.9

if TYPE_CHECKING:
    from caboose.observe.observer import Observer


class _Callbacks(NamedTuple):
    """What the sender's thread calls; it reaches the observer, the brake and the checkpointer, and so the model."""

    heartbeat: Callable[[], Heartbeat]
    on_message: Callable[[Command | Terms], None]
    with_heartbeat: Callable[[bool], Message | None] | None


class Session:
    """What all parts of one monitor share."""

    def __init__(self, identity: Identity, count: StepCount) -> None:
        self.identity = identity
        self.count = count
        self.sender: Sender | None = None
        self.hello: Hello | None = None
        self._has_queued_hello = False
        """Whether one ever was: it may still wait, and the newest must be the last to be sent."""
        self._words: Words | None = None
        self.best_validation: float | None = None
        """Of this rank's validations, for the summary."""
        self._callbacks: _Callbacks | None = None
        """None once the monitor is closed, also while the last message waits."""

    @property
    def attempt(self) -> int:
        """The launcher's restarts and this run's rollbacks."""
        return self.identity.attempt + self.count.num_rollbacks

    def open(
        self,
        hello: Hello,
        endpoint: str,
        *,
        curve: CurveKeys | None,
        heartbeat: Callable[[], Heartbeat],
        on_message: Callable[[Command | Terms], None],
        with_heartbeat: Callable[[bool], Message | None] | None,
        words: Words | None,
    ) -> None:
        """Starts the sender's thread; returns at once, whether or not there is a daemon."""
        self.hello = hello
        self._words = words
        self._callbacks = _Callbacks(heartbeat, on_message, with_heartbeat)
        self.sender = Sender(
            endpoint,
            hello,
            self._beat,
            curve=curve,
            on_message=self._hear,
            with_heartbeat=self._with_heartbeat,
            on_unanswered=None if words is None else words.warn_unanswered,
            totals=RunTotals(is_whole=self.identity.world == 1),
        )
        self.sender.start()

    def let_go(self) -> None:
        """The monitor is closed: heartbeats, messages and thin steps need nothing of it any more."""
        self._callbacks = None
        if self.sender is not None:
            self.sender.let_go()

    def _beat(self) -> Heartbeat:
        callbacks = self._callbacks
        if callbacks is not None:
            return callbacks.heartbeat()
        num_dropped = 0 if self.sender is None else self.sender.num_dropped
        return Heartbeat(step=self.count.step, num_dropped=num_dropped)

    def _hear(self, message: Command | Terms | Verdict) -> None:
        if isinstance(message, Verdict):
            if self._words is not None:
                self._words.take(message)
        elif (callbacks := self._callbacks) is not None:
            callbacks.on_message(message)

    def _with_heartbeat(self, is_fresh: bool) -> Message | None:
        callbacks = self._callbacks
        if callbacks is None or callbacks.with_heartbeat is None:
            return None
        return callbacks.with_heartbeat(is_fresh)

    def summary(self) -> RunSummary | None:
        """Of the run so far; None before it was opened."""
        if self.sender is None:
            return None
        totals, advice = self.sender.totals(), self.advice()
        worst = advice[0] if advice else None
        return RunSummary(
            num_steps=self.count.num_ended,
            num_counted=totals.num_steps,
            first_loss=totals.first_loss,
            last_loss=totals.last_loss,
            num_not_finite=totals.num_not_finite,
            mean_grad_norm=totals.mean_grad_norm,
            max_grad_norm=totals.max_grad_norm if totals.mean_grad_norm is not None else None,
            clip_share=totals.clip_share,
            max_norm=totals.max_norm,
            best_validation=self.best_validation,
            num_rollbacks=self.count.num_rollbacks,
            num_dropped=self.sender.num_dropped,
            health=worst.severity if worst else "ok" if self._words is not None and self._words.has_verdict else "",
            finding=worst.summary if worst else "",
        )

    def advice(self) -> tuple[Advice, ...]:
        """What the daemon reported last, on rank 0."""
        return () if self._words is None else self._words.advice()

    def put(self, item: Outgoing) -> None:
        if self.sender is not None:
            self.sender.put(item)

    def send(self, message: Message) -> None:
        """Queues a message behind the reports; on any thread."""
        self.put(Note(message))

    def event(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Queues an event. Events are rare, so reading a value may wait for the device."""
        self.send(
            Event(
                attempt=self.attempt,
                step=self.count.step,
                time=time.time(),
                kind=str(kind)[:64],
                fields={str(name)[:256]: _read(value) for name, value in fields.items()},
            )
        )
        if self.sender is not None:
            self.sender.hurry()

    def update_hello(self, **changes: Any) -> None:
        """Sends the Hello again with these fields changed, before anything else; but behind one that is queued."""
        if self._has_queued_hello:
            self.replace_hello(**changes)
        elif self.hello is not None and self.sender is not None:
            self.hello = hello = msgspec.structs.replace(self.hello, **changes)
            self.sender.introduce_again(lambda: hello)

    def replace_hello(self, **changes: Any) -> None:
        """Queues a Hello with these fields changed behind the reports that the old one describes."""
        if self.hello is not None:
            self._has_queued_hello = True
            self.hello = msgspec.structs.replace(self.hello, **changes)
            self.send(self.hello)

    def start_attempt(self, model_step: int) -> None:
        """All ranks were rolled back to weights of this age: what follows is a new attempt."""
        self.count.went_back(model_step)
        self.replace_hello(attempt=self.attempt, start_step=self.count.step)

    def close(self, reason: Exit, timeout: float = CLOSE_SECONDS) -> None:
        """Sends what is queued and the Bye, for at most so long, and prints the last line."""
        if self.sender is not None:
            self.sender.close(Bye(step=self.count.step, error=reason.error, signal=reason.signal), timeout)
            if self._words is not None:
                if not (self.count.num_ended or any(reason)):
                    self._words.warn_no_step()
                failed = f"this rank failed: {reason.error[:80]}" if reason.error else ""
                end = f"terminated by {reason.signal}" if reason.signal else failed
                self._words.say_last(self.count.step, end)
                self._words.say_summary(self.summary())

    def say_goodbye(self, signal_name: str) -> None:
        """A signal ends the process: sends what is queued and the Bye, for `GOODBYE_SECONDS` at most; on any thread."""
        if self.sender is not None:
            self.sender.close(Bye(step=self.count.step, signal=signal_name), timeout=GOODBYE_SECONDS)

    def abandon(self) -> None:
        """In a forked child: the socket belongs to the parent."""
        if self.sender is not None:
            self.sender.abandon()


def build_hello(
    session: Session,
    observer: "Observer",
    *,
    torch_version: str,
    config: Mapping[str, Scalar],
    rollback: RollbackMode,
) -> Hello:
    """Who this rank is, its layers and modules, what the agent can see of them, and the rollback mode."""
    identity = session.identity
    return Hello(
        job=identity.job,
        rank=identity.rank,
        world=identity.world,
        host=identity.host[:256],
        pid=identity.pid,
        incarnation=identity.incarnation,
        launch=identity.launch,
        proof=identity.proof,
        attempt=identity.attempt,
        agent_version=__version__,
        torch_version=torch_version,
        started=time.time(),
        start_step=session.count.step,
        layers=observer.table.layers,
        groups=observer.groups,
        modules=observer.modules,
        wrapper=observer.wrapper,
        parts=observer.parts,
        visible=observer.visible,
        blind=observer.blind,
        config=dict(config),
        facts=observer.facts,
        rollback=rollback,
        is_batching=True,
    )


def _read(value: Any) -> Scalar:
    return plain_item(value) if hasattr(value, "item") else plain(value)
