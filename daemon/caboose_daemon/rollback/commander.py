"""Turns a decision into a command for all ranks, and follows their answers to an outcome.

Design
------
Called on the loop's thread. `giving` prepares a command without giving it: a request over HTTP is written first. A
command is queued and sent at the end of the loop's turn, after the journal has the decision (`take`). If the daemon
dies in between, the decision is followed but never sent again. The ranks decide together, so one rank's answer is the
outcome: if one acted, all did. A rank that could not be reached, or that never answers, does not change the outcome.
Thousands of ranks answer at once, so an answer is only stored on arrival; answers are counted once per turn.

Command numbers are higher than any number these ranks have seen, and are used once.
"""

from dataclasses import dataclass

from msgspec.structs import replace

from caboose_daemon.jobs.job import Attempt, Job
from caboose_daemon.jobs.pipeline import Change, Sink
from caboose_daemon.rollback_state.decision import MAX_NAMED, Answer, Decision, DecisionState, with_answers
from caboose_wire import Ack, Command, sign
from caboose_wire.fields import MAX_COUNT

MIN_LIFE_SECONDS = 30.0
LIVES = 3.0
"""Lifetime of a command, as a multiple of the time until its boundary."""
NO_JOURNAL = "the journal cannot be written, and no command is sent without a journal entry"
PATIENCE_SECONDS = 10.0
"""Extra time after the expiry for answers still on their way."""
RANKING: tuple[DecisionState, ...] = ("sent", "expired", "aborted", "committed", "failed")
"""A later state replaces an earlier one."""
MEANING: dict[str, DecisionState] = {
    "accepted": "sent",
    "refused": "aborted",
    "aborted": "aborted",
    "done": "committed",
    "failed": "failed",
}


@dataclass(frozen=True)
class QueuedCommand:
    """A command waiting to be sent to all ranks of a job."""

    job: Job
    decision: int
    command: Command


class Commander:
    """Sends commands and tracks their outcome."""

    def __init__(self, sink: Sink, secret: bytes | None = None) -> None:
        self._sink = sink
        self._secret = secret
        self._queue: list[QueuedCommand] = []

    @property
    def has_secret(self) -> bool:
        """Whether commands are signed."""
        return self._secret is not None

    def make(self, change: Change) -> None:
        """Makes a prepared change at once."""
        change.make(self._sink)

    def note(self, job: Job, decision: Decision) -> Decision:
        """Records a decision without sending anything."""
        self.noting(job, decision).make(self._sink)
        return decision

    def noting(self, job: Job, decision: Decision) -> Change:
        """The change that `note` makes."""
        return Change(
            record=lambda sink: sink.decision_changed(job, decision), apply=lambda: job.rollback.put(decision)
        )

    def give(self, job: Job, decision: Decision, *, life_seconds: float) -> Decision:
        """Queues the decision's command."""
        decision, change = self.giving(job, decision, life_seconds=life_seconds)
        change.make(self._sink)
        return decision

    def giving(self, job: Job, decision: Decision, *, life_seconds: float) -> tuple[Decision, Change]:
        """The decision with its command, and the change that `give` makes."""
        record, attempt = job.rollback, job.attempt
        assert attempt is not None, "a job without ranks gets no command"
        seen = [holdings.last_number for holdings in record.holdings.values()]
        given = [past.command for past in record.decisions if past.group == record.group]
        number = min(MAX_COUNT, max((0, *seen, *given)) + 1)  # ranks that have seen the highest one refuse it
        expires = decision.time + max(MIN_LIFE_SECONDS, LIVES * life_seconds)
        command = Command(
            number=number,
            kind=decision.kind,
            group=record.group,
            world=attempt.world,
            boundary=decision.boundary or 0,
            target=decision.target or 0,
            onset=decision.onset or 0,
            skip=decision.skip,
            lr_scale=decision.lr_scale,
            max_norm=decision.max_norm,
            expires=expires,
            reason=_reason(decision),
        )
        decision = replace(
            decision, state="sent", command=number, group=record.group, world=attempt.world, expires=expires
        )
        noting = self.noting(job, decision)
        queued = QueuedCommand(job, decision.number, sign(command, self._secret) if self._secret else command)

        def apply() -> None:
            record.answers = {}
            self._queue.append(queued)
            noting.apply()

        return decision, Change(noting.record, apply)

    def take(self, *, is_journaled: bool = True) -> list[QueuedCommand]:
        """The commands to send now; if the journal failed, none, and their decisions are refused."""
        queued, self._queue = self._queue, []
        if is_journaled:
            return queued
        for item in queued:
            given = item.job.rollback.find(item.decision)
            if given is not None:
                why = replace(given, state="refused", command=0, outcome=NO_JOURNAL, closed_time=given.time)
                self.note(item.job, why)
        return []

    def unreached(self, item: QueuedCommand, ranks: list[int]) -> None:
        """Records that the command could not be sent to these ranks."""
        amended = item.job.rollback.amend(
            item.decision, num_unreached=len(ranks), unreached=tuple(sorted(ranks)[:MAX_NAMED])
        )
        if amended is not None:
            self._sink.decision_changed(item.job, amended)

    def answered(self, job: Job, rank: int, ack: Ack, now: float) -> None:
        """Takes a rank's answer to a command."""
        record = job.rollback
        decision, holdings = record.last_command, record.holdings.get(rank)
        if decision is None or ack.command != decision.command:
            return  # an older command with a known outcome, or one of a daemon whose journal is gone
        if holdings is not None and holdings.group != decision.group:
            return
        if not _is_of_its_launch(decision, job.attempt):
            return
        answer = Answer(rank, ack.outcome, ack.detail[:500], ack.step, ack.seconds)
        record.answers[rank] = answer
        record.has_new_answers = True
        state = MEANING[ack.outcome]
        if RANKING.index(state) > RANKING.index(decision.state):
            self.note(job, self._ended(decision, state, answer, now))

    def _ended(self, decision: Decision, state: DecisionState, answer: Answer, now: float) -> Decision:
        detail = f": {answer.detail}" if answer.detail else ""
        if state == "committed":
            detail = "" if decision.kind == "hunt" else detail  # differs by rank and is shown per rank
            return committed(decision, now, f"all ranks acted at step {answer.step}{detail}")
        if state == "failed":
            outcome = f"failed on rank {answer.rank}{detail}; all ranks have stopped"
        elif answer.outcome == "refused":
            outcome = f"no rank acted: rank {answer.rank} refused{detail}"
        else:
            outcome = f"no rank acted{detail}"
        return replace(decision, state=state, closed_time=now, outcome=outcome)

    def advance(self, job: Job, now: float) -> None:
        """Expires commands without an answer, unless the run shows that they were carried out."""
        record, attempt = job.rollback, job.attempt
        if record.has_new_answers:
            record.has_new_answers = False
            answered = record.last_command
            if answered is not None:
                self.note(job, with_answers(answered, record.answers))
        decision = record.last_command
        if decision is None or attempt is None or decision.state not in ("sent", "expired"):
            return
        if (
            attempt.reason == "rollback"
            and attempt.number > decision.attempt
            and _began_with(decision, attempt.start_step)
        ):
            self.note(job, committed(decision, now, f"all ranks continued from it at step {attempt.start_step}"))
        elif decision.state == "expired":
            return
        elif attempt.number > decision.attempt and attempt.reason != "rollback":
            outcome = "the run was restarted before any rank answered"
            self.note(job, replace(decision, state="expired", closed_time=now, outcome=outcome))
        elif now > decision.expires + PATIENCE_SECONDS:
            newest = max((member.step for member in attempt.members.values()), default=0)
            outcome = f"no rank answered within {now - decision.time:.0f} s"
            if newest < (decision.boundary or 0):
                outcome = f"the run was paused at step {newest} until the command expired"
            self.note(job, replace(decision, state="expired", closed_time=now, closed_step=newest, outcome=outcome))


def _is_of_its_launch(decision: Decision, attempt: Attempt | None) -> bool:
    """Whether the ranks of this attempt are those that the command was sent to; its rollback began another attempt.

    The group that a rank names proves nothing: whoever takes the name of the job over later may name the same.
    """
    if attempt is None:
        return False
    is_after_it = attempt.reason == "rollback" and attempt.number == decision.attempt + 1
    return attempt.number == decision.attempt or is_after_it


def _began_with(decision: Decision, start_step: int) -> bool:
    return decision.kind == "rollback" and decision.boundary == start_step


def committed(decision: Decision, now: float, outcome: str) -> Decision:
    """The decision, marked as carried out."""
    lost = 0
    if decision.kind == "rollback" and decision.boundary is not None and decision.target is not None:
        lost = decision.boundary - decision.target
        outcome = f"{outcome}; {lost} steps lost"
    return replace(decision, state="committed", closed_time=now, outcome=outcome, steps_lost=lost)


def _reason(decision: Decision) -> str:
    """The reason sent to the ranks, who log it; for a stop it includes why."""
    source = decision.trigger or decision.by or "requested"
    return (f"{source}: {decision.why[0]}" if decision.kind == "stop" and decision.why else source)[:256]
