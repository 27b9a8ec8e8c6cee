"""One rank's exchange with the register: publishes commands, arms or vetoes, and seals the decision at the boundary.

Design
------
Everything here that touches the register runs on the helper's thread, one call after the other, and may raise what the
store raises; each call can be repeated on a new connection. The training thread only calls `arrive` and `carried_out`,
and waits on `Pending.decided`.

The rules that give all ranks one outcome:

- A rank arms, under `lock`, only while the boundary is ahead, and acknowledges only once it has armed. So a commit,
  which needs all acknowledgements, means that every rank will stop at the boundary.
- The decision is written once. The first rank at the boundary seals commit if all have acknowledged, or abort after
  `gate_seconds`; a veto is the same abort, sealed earlier. All others adopt what they find.
- A rank that never armed never waits: without its acknowledgement the others can only abort.

Numbers are considered in order and once. A skipped number is closed in the register, so a rank that missed it finds the
next command by asking for the number after the last.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Literal, Protocol, runtime_checkable

from caboose.rollback.participant import Participant
from caboose.rollback.register import Register, RegisterEntry, Seal
from caboose_wire import Ack, Command

logger = logging.getLogger("caboose")

MAX_GAP = 64
"""Numbers that may be skipped at once; a command further ahead is refused, so that one bad number cannot block all
later ones."""
NUM_EAGER = 8
"""Ranks that seal a commit at once; in a larger world the others wait for them first."""
NUM_REMEMBERED = 16

Outcome = Literal["accepted", "refused", "done", "aborted", "failed"]


class Actions(Protocol):
    """What the protocol needs of the run it acts on."""

    def refuses(self, command: Command, step: int) -> str:
        """Why this rank could not carry it out, or nothing; then its resources are held until `release`.

        Called on the helper's thread with the gate's lock held, so it must return within microseconds.
        """

    def release(self, command: Command) -> None:
        """The command was aborted: frees what `refuses` held. On either thread."""

    def act(self, command: Command, step: int) -> str:
        """All ranks are at this boundary and act now, on the training thread; collectives are safe.

        Returns one line on what was done. An exception ends the run on this rank.
        """


@runtime_checkable
class Warns(Protocol):
    """Actions that can say before the boundary what may go wrong again afterwards."""

    def caveat(self, command: Command) -> str:
        """What to warn of, or nothing. On the helper's thread; returns within microseconds."""


class Pending:
    """An armed command that waits for its decision."""

    def __init__(self, command: Command) -> None:
        self.command = command
        self.decided = threading.Event()
        """Set with `decision`, or without one if it cannot be learned."""
        self.decision: Seal | None = None
        self.arrived: float | None = None
        """When the training thread reached the gate."""
        self.step = 0
        """The step at which it did."""
        self.is_acknowledged = False


class Negotiation:
    """One rank's side; `register` is None without a connection."""

    def __init__(
        self,
        participant: Participant,
        actions: Actions,
        *,
        rank: int,
        gate_seconds: float,
        on_answer: Callable[[Ack], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.participant = participant
        self.register: Register | None = None
        self.pending: Pending | None = None
        self.lock = threading.Lock()
        """Held while the loop's step is compared with a boundary and the result is applied."""
        self._actions = actions
        self._rank = rank
        self._gate_seconds = gate_seconds
        self._on_answer = on_answer
        self._clock = clock
        self._seen: dict[int, Command] = {}

    def receive(self, command: Command) -> None:
        """A command from the daemon: publishes it, then arms or vetoes."""
        register, participant = self._connected(), self.participant
        flaw = participant.mistake(command)
        if not flaw and command.number <= participant.last_number:
            if self._seen.get(command.number) == command:
                return  # received twice
            flaw = f"its number is not above {participant.last_number}, the last one seen"
        if not flaw and command.number > participant.last_number + MAX_GAP:
            flaw = f"its number is far above {participant.last_number}, the last one seen"
        if flaw:
            self.answer(command.number, "refused", flaw)
            return
        for number in range(participant.last_number + 1, command.number):
            self._consider(number, register.close_gap(number))
        self._consider(command.number, register.publish(command))

    def poll(self) -> None:
        """Polls for commands that only other ranks received, and for the decision of the armed one."""
        register = self._connected()
        while True:
            number = self.participant.last_number + 1
            entry = register.find(number)
            if entry is None:
                break
            self._consider(number, entry)
        pending = self.pending
        if pending is not None and pending.decision is None:
            self._acknowledge(pending)
            if pending.arrived is None and pending.command.expires <= self._clock():
                # The loop pauses, for an evaluation or a save; the command has expired meanwhile.
                self._settle(pending, self._veto(pending.command.number, "it expired before its boundary came"))
                return
            self._settle(pending, register.decision(pending.command.number))

    def decide(self, pending: Pending, waited: float) -> bool:
        """Seals or reads the decision for a training thread that has waited so long; returns whether there is one."""
        register, command = self._connected(), pending.command
        self._acknowledge(pending)
        decision = register.decision(command.number)
        if decision is None and pending.step > command.boundary:
            decision = self._veto(command.number, f"the loop jumped from before {command.boundary} to {pending.step}")
        is_eager = self._rank < NUM_EAGER or waited > self._gate_seconds / 4
        if decision is None and is_eager and register.is_complete(command.number):
            decision = register.seal(command.number, Seal(True))
        if decision is None and waited > self._gate_seconds:
            num_ready = register.num_acks(command.number)
            decision = self._veto(command.number, f"only {num_ready} ranks were ready within {self._gate_seconds:g} s")
        self._settle(pending, decision)
        return decision is not None

    def leave(self) -> None:
        """Vetoes a pending command, and accepts no more."""
        with self.lock:
            self.participant.is_leaving = True
            pending = self.pending
        if pending is not None and pending.decision is None:
            self._settle(pending, self._veto(pending.command.number, "it is leaving"))

    def arrive(self, step: int) -> Pending:
        """The loop is at an armed boundary. On the training thread, with the lock held."""
        pending = self.pending
        assert pending is not None
        pending.step = step
        pending.arrived = time.monotonic()
        return pending

    def carried_out(self) -> None:
        """The commit was acted on. On the training thread."""
        with self.lock:
            self.participant.commit(self._clock())
            self.pending = None

    def answer(self, number: int, outcome: Outcome, detail: str, seconds: float = 0.0) -> None:
        """Reports to the daemon; a failure there does not affect the run."""
        ack = Ack(
            command=number, outcome=outcome, detail=detail[:1000], step=max(0, self.participant.passed), seconds=seconds
        )
        try:
            self._on_answer(ack)
        except Exception as error:  # noqa: BLE001 - the run comes first
            logger.warning("caboose: could not answer command %d: %r", number, error)

    def _connected(self) -> Register:
        if self.register is None:
            raise ConnectionError("there is no connection to the register")
        return self.register

    def _consider(self, number: int, entry: RegisterEntry) -> None:
        """Considers a number, once: arms and acknowledges, or vetoes."""
        command, refusal = entry.command, entry.flaw
        pending: Pending | None = None
        with self.lock:
            if number <= self.participant.last_number:
                return
            if command is not None:
                refusal = self._refusal(command)
                if not refusal:
                    self.participant.arm(command, self._clock())
                    self.pending = pending = Pending(command)
                self._remember(command)
            self.participant.see(number)
        if refusal:
            self.answer(number, "refused", refusal)
            self._veto(number, refusal)
        elif pending is not None:
            self._acknowledge(pending)

    def _refusal(self, command: Command) -> str:
        participant = self.participant
        refusal = participant.mistake(command) or participant.objection(command, self._clock())
        if refusal:
            return refusal
        try:
            return self._actions.refuses(command, participant.passed)
        except Exception as error:  # noqa: BLE001 - a rank that cannot check is not ready
            return f"could not check whether it can be done: {error!r}"

    def _remember(self, command: Command) -> None:
        self._seen[command.number] = command
        if len(self._seen) > NUM_REMEMBERED:
            del self._seen[min(self._seen)]

    def _acknowledge(self, pending: Pending) -> None:
        if not pending.is_acknowledged:
            self._connected().acknowledge(pending.command.number)
            pending.is_acknowledged = True
            self.answer(pending.command.number, "accepted", self._caveat(pending.command))

    def _caveat(self, command: Command) -> str:
        """What the actions warn of before the boundary; a failure to know it is no reason not to act."""
        try:
            return self._actions.caveat(command) if isinstance(self._actions, Warns) else ""
        except Exception as error:  # noqa: BLE001 - the run comes first
            logger.warning("caboose: could not check what follows from command %d: %r", command.number, error)
            return ""

    def _veto(self, number: int, reason: str) -> Seal:
        return self._connected().seal(number, Seal(False, f"rank {self._rank}: {reason}"))

    def _settle(self, pending: Pending, decision: Seal | None) -> None:
        if decision is None:
            return
        with self.lock:
            pending.decision = decision
            has_arrived = pending.arrived is not None
            if not decision.is_commit:
                self.participant.abort()
                self.pending = None
        pending.decided.set()
        if decision.is_commit:
            return
        if not has_arrived:  # else the training thread answers, which knows how long it waited
            self.answer(pending.command.number, "aborted", decision.reason)
        try:
            self._actions.release(pending.command)
        except Exception as error:  # noqa: BLE001 - it stays held; the run continues
            logger.warning("caboose: could not release what command %d needed: %r", pending.command.number, error)
