"""The rollback state of one job: decisions, ledger, current status. State only; `rollback.policy` acts on it."""

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from caboose_daemon.rollback_state.continuity import Continuity
from caboose_daemon.rollback_state.cost import Cost
from caboose_daemon.rollback_state.decision import Answer, Decision
from caboose_daemon.rollback_state.ladder import spent
from caboose_daemon.rollback_state.ledger import RECORDED, Ledger, saved_step
from caboose_daemon.rollback_state.run_start import RunStart
from caboose_daemon.rollback_state.suspicion import Suspicion
from caboose_daemon.rollback_state.triage import Triage
from caboose_daemon.rules.parts.scaling import SkippedSteps
from caboose_daemon.shallow import shallow
from caboose_daemon.steps.aligned import AlignedStep
from caboose_wire import Event, Holdings, Terms
from caboose_wire.fields import MAX_COUNT
from caboose_wire.rollback import RollbackMode

MAX_DECISIONS = 500
Standing = Literal["off", "advise", "ready", "sent", "checking", "exhausted"]
"""ready: may act. sent: a command is on its way. checking: the loss after a rollback is being checked."""


@dataclass(frozen=True)
class Weighed:
    """What a rollback of an open incident would be, and its cost beside that of waiting."""

    cost: Cost
    target: int | None
    boundary: int


@dataclass
class RollbackRecord:
    """The rollback state of one job."""

    decisions: deque[Decision] = field(default_factory=lambda: deque(maxlen=MAX_DECISIONS))
    """Oldest first."""
    ledger: Ledger = field(default_factory=Ledger)
    holdings: dict[int, Holdings] = field(default_factory=dict)
    """By rank, for the current attempt."""
    triages: dict[int, Triage] = field(default_factory=dict)
    """Of open incidents, by number."""
    weighed: dict[int, Weighed] = field(default_factory=dict)
    """The last comparison of waiting and going back for open incidents, by number."""
    lost_by_waiting: dict[int, float] = field(default_factory=dict)
    """Steps of training lost since incidents began, by number."""
    notes: dict[int, str] = field(default_factory=dict)
    """Why nothing is done about an open incident for now, by number."""
    mode: RollbackMode = "off"
    """In force: the lower of the daemon's and the run's."""
    check: Continuity | None = None
    exhausted: str = ""
    """Why nothing more can be tried; empty otherwise."""
    is_holding: bool = False
    """Whether snapshots are paused: an incident is open, or the loss has left its level."""
    suspicion: Suspicion = field(default_factory=Suspicion)
    terms: Terms | None = None
    """Last terms sent to the ranks."""
    answers: dict[int, Answer] = field(default_factory=dict)
    """Answers to the last command, by rank."""
    has_new_answers: bool = False
    has_new_holdings: bool = False
    start: RunStart = field(default_factory=RunStart)
    sees_start: bool = True
    """False once an attempt began at a later step: what it then reports is not where the run began."""
    num_skipped: int = 0
    """Consecutive latest steps skipped by a gradient scaler."""
    num_steps_seen: int = -1
    """Number of judged steps at the policy's last check."""
    next_check: float = 0.0
    next_judging: float = 0.0
    _scaler: SkippedSteps = field(default_factory=SkippedSteps)

    def observe(self, step: AlignedStep) -> None:
        """Counts steps skipped by a gradient scaler, and notes the first losses; called for every step."""
        if self.sees_start:
            self.start.observe(step.mean_loss)
        self.num_skipped = self.num_skipped + 1 if self._scaler.observe(step) else 0

    def declaring(self, event: Event) -> Ledger | None:
        """The ledger with a declared event; None where the event does not concern it.

        A save in the background is reported when it ends, possibly after a rollback.
        """
        if event.kind not in RECORDED:
            return None
        step, attempt = saved_step(event), event.attempt
        while (decision := self._rolled_back_to(attempt)) and step < (decision.boundary or 0):
            attempt -= 1
        ledger = self.ledger.copy()
        ledger.declare(msgspec.structs.replace(event, attempt=attempt), is_left=attempt != event.attempt)
        return ledger

    def copy(self) -> "RollbackRecord":
        """The same record with containers of its own, for a reader on another thread."""
        record = shallow(self)
        record.decisions, record.ledger = self.decisions.copy(), self.ledger.copy()
        record.holdings, record.answers = dict(self.holdings), dict(self.answers)
        record.triages, record.notes = dict(self.triages), dict(self.notes)
        record.weighed, record.lost_by_waiting = dict(self.weighed), dict(self.lost_by_waiting)
        return record

    def lineage(self, attempt: int) -> dict[int, int]:
        """The earlier attempts whose weights this one continues, after rollbacks, each with the last step it has."""
        found: dict[int, int] = {}
        last = MAX_COUNT
        while (decision := self._rolled_back_to(attempt)) is not None and decision.target is not None:
            attempt, last = attempt - 1, min(last, decision.target)
            found[attempt] = last
        return found

    def _rolled_back_to(self, attempt: int) -> Decision | None:
        """The rollback that started this attempt, if any."""
        done = (d for d in reversed(self.decisions) if d.kind == "rollback" and d.state in ("sent", "committed"))
        return next((decision for decision in done if decision.attempt == attempt - 1), None)

    def restart(self, *, is_rollback: bool, start_step: int) -> None:
        """A new attempt begins: the old ranks' holdings are dropped; the new ranks report theirs again."""
        self.sees_start = self.sees_start and not start_step
        if not is_rollback:
            self.ledger.hold((), 0)
        decision = self.rollback_at(start_step) if is_rollback else None
        target = None if decision is None else decision.target
        self.ledger.continue_from(start_step if target is None else target)
        self.holdings.clear()
        self.triages.clear()
        self.weighed.clear()
        self.notes.clear()
        self.num_skipped = 0
        self._scaler = SkippedSteps()
        self.suspicion = Suspicion()

    def restore(self, decisions: Iterable[Decision], attempt: int, unsolved: Collection[str]) -> None:
        """Loads decisions from the journal, oldest first; `unsolved` are the incidents that are not resolved.

        `exhausted` is set again if the last decision of this attempt set it and its incident is unsolved.
        """
        self.decisions.extend(decisions)
        own = (decision for decision in reversed(self.decisions) if not decision.by and decision.kind != "hunt")
        last = next(own, None)
        if last is not None and last.attempt == attempt and last.trigger in unsolved:
            if last.state == "exhausted":
                self.exhausted = last.outcome
            elif last.kind == "stop" and last.state in ("sent", "committed"):
                self.exhausted = last.why[0] if last.why else last.summary
        command = self.last_command
        if command is not None:
            self.answers = {answer.rank: answer for answer in command.answers}

    def find(self, number: int) -> Decision | None:
        """The decision with this number, if still in memory."""
        return next((decision for decision in reversed(self.decisions) if decision.number == number), None)

    def put(self, decision: Decision) -> None:
        """Adds or updates a decision."""
        for place, known in enumerate(self.decisions):
            if known.number == decision.number:
                self.decisions[place] = decision
                return
        self.decisions.append(decision)

    @property
    def next_number(self) -> int:
        return self.decisions[-1].number + 1 if self.decisions else 1

    @property
    def in_flight(self) -> Decision | None:
        """The decision whose command has no outcome yet."""
        return next((decision for decision in reversed(self.decisions) if decision.is_open), None)

    @property
    def last_command(self) -> Decision | None:
        """The last decision with a command."""
        return next((decision for decision in reversed(self.decisions) if decision.command), None)

    def rollback_at(self, boundary: int) -> Decision | None:
        """The rollback whose boundary is this step."""
        wanted = (d for d in reversed(self.decisions) if d.kind == "rollback" and d.boundary == boundary and d.command)
        return next(wanted, None)

    @property
    def group(self) -> str:
        """The process group the ranks reported; empty if they disagree or reported none."""
        groups = {holdings.group for holdings in self.holdings.values()}
        return groups.pop() if len(groups) == 1 else ""

    @property
    def standing(self) -> Standing:
        if self.in_flight is not None:
            return "sent"
        if self.exhausted:
            return "exhausted"
        if self.mode != "auto":
            return "off" if self.mode == "off" else "advise"
        return "checking" if self.check is not None and self.check.state == "checking" else "ready"

    def budget_left(self, budget: int, now: float) -> int:
        """Rollbacks left today, by the lower of the daemon's and the ranks' count."""
        left = budget - spent(self.decisions, now)
        return max(0, min((left, *(holdings.budget_left for holdings in self.holdings.values()))))

    @property
    def cool_until(self) -> int:
        """The ranks refuse a rollback with a boundary before this step."""
        return max((holdings.cool_until for holdings in self.holdings.values()), default=0)

    def amend(self, number: int, **changes: object) -> Decision | None:
        """The decision with these changes; None if nothing changed or it is no longer in memory."""
        known = self.find(number)
        if known is None or all(getattr(known, name) == value for name, value in changes.items()):
            return None
        decision = msgspec.structs.replace(known, **changes)
        self.put(decision)
        return decision
