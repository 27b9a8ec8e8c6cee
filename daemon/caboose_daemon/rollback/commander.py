"""Turns a decision into a command for all ranks, and follows their answers to an outcome.

Design
------
Called on the loop's thread, or by HTTP with the state's lock held. A command is queued and goes out at the end of the
loop's turn, after the journal has the decision (`take`): a daemon that dies in between has a decision that is
followed and never sent again. The ranks decide among themselves, so one rank's word is the outcome: if one acted, all
did. A rank that could not be reached, or that never answers, changes nothing here. Thousands of ranks answer at once,
so an answer is only kept as it comes, and they are counted once in a turn.

What is sent is numbered above everything these ranks have seen; a number is used once.
"""

from dataclasses import dataclass

from msgspec.structs import replace

from caboose_daemon.jobs.job import Job
from caboose_daemon.jobs.pipeline import Sink
from caboose_daemon.rollback_state.decision import MAX_NAMED, Answer, Decision, DecisionState, told
from caboose_wire import Ack, Command, sign

MIN_LIFE_SECONDS = 30.0
LIVES = 3.0
"""Times the time until the boundary that a command may live."""
NO_TRAIL = "the journal cannot be written, and nothing is done without a trail"
PATIENCE_SECONDS = 10.0
"""After its end, before it is given up: the last answers may be on their way."""
RANKING: tuple[DecisionState, ...] = ("sent", "expired", "aborted", "committed", "failed")
"""Later ones are believed over earlier ones."""
MEANING: dict[str, DecisionState] = {
    "accepted": "sent",
    "refused": "aborted",
    "aborted": "aborted",
    "done": "committed",
    "failed": "failed",
}


@dataclass(frozen=True)
class Order:
    """A command to be sent to all ranks of a job."""

    job: Job
    decision: int
    command: Command


class Commander:
    """Gives commands and hears what became of them."""

    def __init__(self, sink: Sink, secret: bytes | None = None) -> None:
        self._sink = sink
        self._secret = secret
        self._orders: list[Order] = []

    @property
    def has_secret(self) -> bool:
        """Whether commands are signed."""
        return self._secret is not None

    def note(self, job: Job, decision: Decision) -> Decision:
        """Keeps a decision that nothing is sent for."""
        job.rollback.put(decision)
        self._sink.decision_changed(job, decision)
        return decision

    def give(self, job: Job, decision: Decision, *, life_seconds: float) -> Decision:
        """Has a decision carried out."""
        record, attempt = job.rollback, job.attempt
        assert attempt is not None, "a job without ranks is given no command"
        seen = [holdings.last_number for holdings in record.holdings.values()]
        given = [past.command for past in record.decisions if past.group == record.group]
        number = max((0, *seen, *given)) + 1
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
            expires=expires,
            reason=_reason(decision),
        )
        decision = replace(
            decision, state="sent", command=number, group=record.group, world=attempt.world, expires=expires
        )
        record.answers = {}
        self._orders.append(Order(job, decision.number, sign(command, self._secret) if self._secret else command))
        return self.note(job, decision)

    def take(self, *, has_trail: bool = True) -> list[Order]:
        """What is to be sent now; nothing, and the decisions are withdrawn, if the journal did not take them."""
        orders, self._orders = self._orders, []
        if has_trail:
            return orders
        for order in orders:
            given = order.job.rollback.find(order.decision)
            if given is not None:
                why = replace(given, state="refused", command=0, outcome=NO_TRAIL, closed_time=given.time)
                self.note(order.job, why)
        return []

    def unreached(self, order: Order, ranks: list[int]) -> None:
        """These ranks could not be sent the command."""
        amended = order.job.rollback.amend(
            order.decision, num_unreached=len(ranks), unreached=tuple(sorted(ranks)[:MAX_NAMED])
        )
        if amended is not None:
            self._sink.decision_changed(order.job, amended)

    def answered(self, job: Job, rank: int, ack: Ack, now: float) -> None:
        """A rank said what it makes, or made, of a command."""
        record = job.rollback
        decision, holdings = record.last_command, record.holdings.get(rank)
        if decision is None or ack.command != decision.command:
            return  # of an older one, whose outcome is known, or of a daemon whose journal is gone
        if holdings is not None and holdings.group != decision.group:
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
            detail = "" if decision.kind == "hunt" else detail  # each rank's own, shown one by one
            return committed(decision, now, f"all ranks acted at step {answer.step}{detail}")
        if state == "failed":
            outcome = f"rank {answer.rank} could not carry it out{detail}; all ranks have stopped"
        elif answer.outcome == "refused":
            outcome = f"no rank acted: rank {answer.rank} refused{detail}"
        else:
            outcome = f"no rank acted{detail}"
        return replace(decision, state=state, closed_time=now, outcome=outcome)

    def advance(self, job: Job, now: float) -> None:
        """Lets time pass: what nobody answers is given up, unless the run itself shows that it was done."""
        record, attempt = job.rollback, job.attempt
        if record.has_new_answers:
            record.has_new_answers = False
            answered = record.last_command
            if answered is not None:
                self.note(job, told(answered, record.answers))
        decision = record.last_command
        if decision is None or attempt is None or decision.state not in ("sent", "expired"):
            return
        if (
            attempt.reason == "rollback"
            and attempt.number > decision.attempt
            and _began_with(decision, attempt.start_step)
        ):
            self.note(job, committed(decision, now, f"all ranks went on from it at step {attempt.start_step}"))
        elif decision.state == "expired":
            return
        elif attempt.number > decision.attempt and attempt.reason != "rollback":
            outcome = "the run was launched anew before anything was heard of it"
            self.note(job, replace(decision, state="expired", closed_time=now, outcome=outcome))
        elif now > decision.expires + PATIENCE_SECONDS:
            newest = max((member.step for member in attempt.members.values()), default=0)
            outcome = f"nothing was heard of it within {now - decision.time:.0f} s"
            if newest < (decision.boundary or 0):
                outcome = f"the run stood still at step {newest} until its time was over"
            self.note(job, replace(decision, state="expired", closed_time=now, closed_step=newest, outcome=outcome))


def _began_with(decision: Decision, start_step: int) -> bool:
    return decision.kind == "rollback" and decision.boundary == start_step


def committed(decision: Decision, now: float, outcome: str) -> Decision:
    """The decision, carried out."""
    lost = 0
    if decision.kind == "rollback" and decision.boundary is not None and decision.target is not None:
        lost = decision.boundary - decision.target
        outcome = f"{outcome}; {lost} steps are lost"
    return replace(decision, state="committed", closed_time=now, outcome=outcome, steps_lost=lost)


def _reason(decision: Decision) -> str:
    """What the ranks are told, and log: a run that is stopped should say why."""
    asked = decision.trigger or decision.by or "asked for"
    return (f"{asked}: {decision.why[0]}" if decision.kind == "stop" and decision.why else asked)[:256]
