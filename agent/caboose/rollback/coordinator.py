"""Acts on commands, on all ranks at one boundary or on none: the gate in the training loop and the helper thread.

Design
------
The training thread calls `pass_boundary` once a step. With nothing armed that is a lock and two comparisons. At an
armed boundary it wakes the helper and waits on an event: it touches neither socket nor store, because a store whose
server is frozen ignores its own timeout. While the register answers, the wait is at most `gate_seconds`; if it does
not for `doubt_seconds`, this rank cannot know whether the others acted, and the run must not continue.

The helper is a thread with its own connection. It polls for the next command every `poll_seconds` (more slowly in a
larger world: one server answers all ranks), and at once when one is offered. So a command that any rank received
reaches all, even if the daemon is gone. A broken connection is opened again, with growing pauses.

After a commit all ranks are at the same boundary, so collectives are safe: `Actions.act`, then one all-reduce in which
all learn whether all succeeded (`agreement`) and, after a rollback, whether their parameters are equal. Of all failures
here, only `RollbackFailed` and `RollbackInDoubt` reach the training loop; they are raised again at each later boundary,
in case the loop catches them.
"""

import logging
import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NoReturn, Protocol, runtime_checkable

from caboose.report import threads
from caboose.report.daemon_log import printable
from caboose.rollback.agreement import agree
from caboose.rollback.budget import Limits
from caboose.rollback.errors import NotCarriedOut, RollbackFailed, RollbackInDoubt, RunStopped
from caboose.rollback.negotiation import Actions, Negotiation, Pending
from caboose.rollback.participant import Participant
from caboose.rollback.register import Register, Store
from caboose_wire import Ack, Command

logger = logging.getLogger("caboose")

MIN_POLL_SECONDS = 0.25
MAX_POLL_SECONDS = 1.0
SECONDS_PER_RANK = 0.001
"""4,096 ranks polling once a second use about a tenth of what one store can answer."""
GATE_POLL_SECONDS = (0.001, 0.02)
GATE_SECONDS_PER_RANK = 5e-5
MAX_OFFERS = 64
MAX_RETRY_SECONDS = 30.0


@runtime_checkable
class Fingerprinted(Protocol):
    """Actions that can compare replicas after they acted."""

    def fingerprint(self) -> int | None:
        """Equal on all ranks if their replicated parameters are; None where nothing is replicated."""


class Coordinator:
    """One rank's gate and helper; `open_store` connects to the register's store and may block (see `group`)."""

    def __init__(
        self,
        open_store: Callable[[], Store],
        actions: Actions,
        *,
        rank: int,
        world: int,
        group: str,
        key: bytes,
        secret: bytes | None = None,
        start_step: int = 0,
        gate_seconds: float = 1.0,
        doubt_seconds: float = 30.0,
        poll_seconds: float | None = None,
        limits: Limits | None = None,
        on_answer: Callable[[Ack], None],
    ) -> None:
        if not 0 < gate_seconds < doubt_seconds:
            raise ValueError(f"gate_seconds={gate_seconds} must be above 0 and below doubt_seconds={doubt_seconds}")
        self._open_store = open_store
        self._actions = actions
        self._rank, self._world, self._group, self._key = rank, world, group, key
        self._doubt_seconds = doubt_seconds
        if poll_seconds is None:
            poll_seconds = min(MAX_POLL_SECONDS, max(MIN_POLL_SECONDS, world * SECONDS_PER_RANK))
        self._poll_seconds = poll_seconds
        self._participant = Participant(
            group=group, world=world, secret=secret, start_step=start_step, limits=limits or Limits()
        )
        self._negotiation = Negotiation(
            self._participant, actions, rank=rank, gate_seconds=gate_seconds, on_answer=on_answer
        )
        self._lock = self._negotiation.lock
        self._reach = self._participant.reach
        self._offers: deque[Command] = deque(maxlen=MAX_OFFERS)
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._num_failures = 0
        self._failure: RollbackFailed | RollbackInDoubt | None = None
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="caboose-rollback", daemon=True)

    def start(self) -> None:
        """Starts to connect; returns at once."""
        threads.start(self._thread)

    @property
    def last_number(self) -> int:
        """The highest command number that this rank has considered."""
        return self._participant.last_number

    @property
    def budget_left(self) -> int:
        """Rollbacks that this rank would still accept today."""
        with self._lock:
            return self._participant.budget.num_left(time.time())

    @property
    def cool_until(self) -> int:
        """The first boundary at which a rollback is accepted again."""
        return self._participant.budget.cool_until

    @property
    def num_rollbacks(self) -> int:
        """Rollbacks carried out since attach."""
        return self._participant.budget.num_rollbacks

    @property
    def is_connected(self) -> bool:
        """Whether the helper has reached the register."""
        return self._negotiation.register is not None

    def offer(self, command: Command) -> None:
        """A command from the daemon. On any thread; never blocks, and does not return its outcome."""
        self._offers.append(command)
        self._wake.set()

    def pass_boundary(self, step: int) -> None:
        """Ends an optimizer step. On the training thread; waits only if a command is armed for this boundary."""
        with self._lock:
            if self._reach(step) is None:
                return
            pending = self._negotiation.arrive(step)
        self._pass_gate(pending)

    def close(self, timeout: float = 2.0) -> None:
        """Vetoes a pending command and stops the helper; does not wait for a register that does not answer."""
        if os.getpid() != self._pid:  # a forked child has neither the thread nor the connection
            return
        self._closing.set()
        self._wake.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    # The training thread.

    def _pass_gate(self, pending: Pending) -> None:
        if self._failure is not None:
            raise self._failure
        command, begun = pending.command, time.monotonic()
        self._wake.set()
        pending.decided.wait(self._doubt_seconds)
        decision = pending.decision
        if decision is None:
            self._fail(
                pending,
                begun,
                RollbackInDoubt(
                    f"command {command.number} ({command.kind}) was due after step {command.boundary} and this rank "
                    "cannot learn whether the others acted: rank 0's process is gone or frozen, or the connection to "
                    "it is. Restart the run from a checkpoint."
                ),
            )
        elif not decision.is_commit:
            self._negotiation.answer(command.number, "aborted", decision.reason, time.monotonic() - begun)
        elif pending.step != command.boundary:
            self._fail(
                pending,
                begun,
                RollbackFailed(
                    f"all ranks agreed on command {command.number} after step {command.boundary}, and this one jumped "
                    f"over it to step {pending.step}. Restart the run from a checkpoint."
                ),
            )
        else:
            self._act(pending, begun)

    def _act(self, pending: Pending, begun: float) -> None:
        command = pending.command
        detail, fingerprint = "", None
        failure: Exception | None = None
        stop: RunStopped | None = None
        undone = ""
        try:
            detail = self._actions.act(command, command.boundary)
            # No other kind changes parameters: if replicas differ then, they did before, and that need not end the run.
            is_compared = isinstance(self._actions, Fingerprinted) and command.kind == "rollback"
            fingerprint = self._actions.fingerprint() if is_compared else None  # type: ignore[attr-defined]
        except RunStopped as error:
            stop = error
        except NotCarriedOut as error:
            undone = str(error)
        except Exception as error:  # noqa: BLE001 - the other ranks wait in the all-reduce, where they learn of it
            failure = error
        problem = "this rank could not carry it out" if failure is not None else ""
        if self._world > 1:
            try:
                problem = agree(command.number, is_done=failure is None, fingerprint=fingerprint)
            except Exception as error:  # noqa: BLE001 - a peer is gone, or the group is: nothing is known of the others
                problem, failure = "the ranks could not compare their outcomes", failure or error
        if problem:
            text = f"command {command.number} ({command.kind}) after step {command.boundary}: {problem}"
            if failure is not None:
                text += f" ({type(failure).__name__}: {failure})"
            failed = RollbackFailed(f"{text}. Restart the run from a checkpoint.")
            failed.__cause__ = failure
            self._fail(pending, begun, failed)
        seconds = time.monotonic() - begun
        self._negotiation.answer(
            command.number, "aborted" if undone else "done", undone or detail or str(stop or ""), seconds
        )
        if stop is not None or command.kind == "stop":  # stays armed, so that every later boundary raises it again
            why = printable(command.reason)
            self._failure = stop or RunStopped(f"stopped after step {command.boundary} on all ranks: {why}")
            raise self._failure
        self._negotiation.carried_out()

    def _fail(self, pending: Pending, begun: float, failure: RollbackFailed | RollbackInDoubt) -> NoReturn:
        self._failure = failure
        self._negotiation.answer(pending.command.number, "failed", str(failure), time.monotonic() - begun)
        raise failure

    # The helper's thread.

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                self._wake.wait(self._serve())
                self._wake.clear()
        except Exception as error:  # noqa: BLE001 - a dead helper must not become a traceback in someone's job
            logger.warning("caboose: the rollback helper stopped, this rank takes no more commands: %r", error)
        self._leave()

    def _serve(self) -> float:
        """One turn; returns the seconds until the next one."""
        try:
            if self._negotiation.register is None:
                self._negotiation.register = self._connect()
            pending = self._negotiation.pending
            if pending is not None and pending.arrived is not None and pending.decision is None:
                self._decide(pending, pending.arrived)
            while self._offers:  # removed only afterwards: the connection may break in between
                self._negotiation.receive(self._offers[0])
                self._offers.popleft()
            self._negotiation.poll()
        except (RuntimeError, OSError) as error:  # what stores and sockets raise
            return self._lose(error)
        self._num_failures = 0
        return self._poll_seconds * random.uniform(0.8, 1.2)  # noqa: S311 - spreads the ranks, hides nothing

    def _connect(self) -> Register:
        return Register(self._open_store(), group=self._group, key=self._key, rank=self._rank, world=self._world)

    def _decide(self, pending: Pending, arrived: float) -> None:
        pause, slowest = GATE_POLL_SECONDS
        pause, slowest = (seconds + self._world * GATE_SECONDS_PER_RANK for seconds in (pause, slowest))
        while not self._negotiation.decide(pending, time.monotonic() - arrived):
            time.sleep(pause)
            pause = min(slowest, 1.5 * pause)

    def _lose(self, error: Exception) -> float:
        """The register cannot be reached: drops the connection and returns the seconds until the next try."""
        self._negotiation.register = None
        self._num_failures += 1
        if self._num_failures == 2:
            logger.warning("caboose: no connection to the rollback register of rank 0, trying again: %s", error)
        pending = self._negotiation.pending
        if pending is None:
            return min(MAX_RETRY_SECONDS, 0.25 * 2.0 ** min(self._num_failures, 10))
        if isinstance(error, ConnectionRefusedError) and pending.arrived is not None:
            pending.decided.set()  # no process listens there: rank 0 is gone, and waiting is useless
        return 0.1

    def _leave(self) -> None:
        try:
            if self._negotiation.pending is not None and self._negotiation.register is None:
                self._negotiation.register = self._connect()
            self._negotiation.leave()
        except Exception as error:  # noqa: BLE001 - the thread ends here, in whatever state it is
            logger.warning("caboose: the other ranks could not be notified that this one leaves: %r", error)
        pending = self._negotiation.pending
        if pending is None:
            return
        if pending.decision is None:
            pending.decided.set()  # the decision cannot be learned any more, so the loop need not wait for it
        elif pending.arrived is None:
            logger.error(
                "caboose: the other ranks act on command %d after step %d, but this one has left the loop",
                pending.command.number,
                pending.command.boundary,
            )
