"""A decision: what was proposed for a run, why, and the outcome. This is the audit record."""

import math
from typing import Literal

import msgspec

from caboose_daemon.rollback_state.attribution import Attribution, Cordon, cordon_of
from caboose_daemon.rollback_state.cost import Cost
from caboose_daemon.rollback_state.triage import Triage
from caboose_wire.rollback import CommandKind, RollbackMode

DecisionState = Literal["advised", "sent", "committed", "aborted", "refused", "failed", "expired", "exhausted"]
"""advised: shown, not done. sent: sent to the ranks. committed: all ranks acted. aborted: no rank acted. refused: never
sent. failed: the ranks agreed and then failed; the run has stopped. expired: no answer in time. exhausted: rollback no
longer helps, and a person is needed."""
MAX_ANSWERS = 32
"""Answers kept individually; all are counted."""
MAX_NAMED = 32
URGENCY = ("failed", "refused", "aborted", "done", "accepted")
NAMES: dict[CommandKind, str] = {
    "rollback": "roll back",
    "snapshot": "take a snapshot",
    "checkpoint": "save a checkpoint",
    "scale_lr": "scale the learning rate",
    "clip": "limit the gradient norm",
    "stop": "stop",
    "hunt": "hunt for the first bad number",
}


class Answer(msgspec.Struct, frozen=True):
    """A rank's last answer to the command."""

    rank: int
    outcome: str
    detail: str = ""
    step: int = 0
    seconds: float = 0.0


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """One decision; `number` counts within the job."""

    job: str
    number: int
    time: float
    attempt: int
    step: int
    """The newest judged step."""
    mode: RollbackMode
    """In force at the time: the lower of the daemon's and the run's."""
    kind: CommandKind = "rollback"
    trigger: str = ""
    """The incident's id; empty for a manual request."""
    by: str = ""
    """Who requested it."""
    rung: int = 0
    """Of the ladder: 1 for the first rollback, 2 if the same problem came back, ..."""
    num_tried: int = 0
    """Earlier proposals that were not carried out."""
    triage: Triage | None = None
    cost: Cost | None = None
    target: int | None = None
    boundary: int | None = None
    onset: int | None = None
    """The step whose batch a hunt reruns."""
    skip: int = 0
    lr_scale: float = 1.0
    max_norm: float = 0.0
    """The limit of the gradient norm, for `clip`; 0 takes it away."""
    attribution: Attribution | None = None
    """What the problem was attributed to, where that changed the decision."""
    why: tuple[str, ...] = ()
    """Reasons for the choice, or for doing nothing."""
    state: DecisionState = "advised"
    command: int = 0
    """The command's number; 0 if none was sent."""
    group: str = ""
    """The process group it was sent to."""
    world: int = 0
    expires: float = 0.0
    num_answers: dict[str, int] = {}
    """Number of ranks by their last answer."""
    answers: tuple[Answer, ...] = ()
    """Of some ranks, the most urgent first."""
    num_unreached: int = 0
    unreached: tuple[int, ...] = ()
    """Ranks it could not be sent to; they may have received it from other ranks."""
    closed_time: float | None = None
    closed_step: int | None = None
    """The newest step when it expired."""
    outcome: str = ""
    """The outcome, in one line."""
    seconds: float = 0.0
    """How long training was paused on the slowest rank."""
    steps_lost: int = 0
    continuity: str = ""
    """How the loss continued afterwards; empty until known."""
    saved: float | None = None
    """Steps of training that an advised rollback would have saved, below 0 if it would have cost more; None until its
    incident is over."""
    hindsight: str = ""
    """The same in one line."""

    @property
    def id(self) -> str:
        """`job/dN`."""
        return f"{self.job}/d{self.number}"

    @property
    def incident(self) -> int:
        """The incident's number; 0 for a manual request."""
        return number_of(self.trigger)

    @property
    def cordon(self) -> Cordon | None:
        """Advice to take a machine out, if one is at fault."""
        return cordon_of(self.attribution)

    @property
    def is_open(self) -> bool:
        """Whether the outcome is still unknown."""
        return self.state == "sent"

    @property
    def was_paused(self) -> bool:
        """Whether it expired because the run was paused; no rank was late."""
        if self.state == "aborted":
            return self.closed_time is not None and self.closed_time >= self.expires > 0
        return self.state == "expired" and self.closed_step is not None and self.closed_step < (self.boundary or 0)

    @property
    def summary(self) -> str:
        what = NAMES[self.kind]
        if self.kind == "clip":
            what = f"{what} to {self.max_norm:g}" if self.max_norm else "take the limit of the gradient norm away"
        if self.kind == "rollback" and self.target is not None:
            what = f"roll back to step {self.target}"
        if self.kind == "hunt" and self.onset is not None:
            what = f"{what} of step {self.onset}"
        if self.kind == "hunt" and self.target:
            what = f"{what} on the snapshot of step {self.target},"
        if self.boundary is not None:
            what = f"{what} at step {self.boundary}"
        if self.skip:
            what = f"{what}, skip {self.skip} steps of data"
        if self.lr_scale != 1.0:
            what = f"{what}, learning rate x {self.lr_scale:g}"
        return what

    def explain(self) -> list[str]:
        """All of it, as lines for a person."""
        source = (
            f"requested by {self.by}" if self.by else f"for incident {self.trigger}" if self.trigger else "requested"
        )
        lines = [
            f"{self.summary}: {self.state}",
            f"{source} at step {self.step} of attempt {self.attempt}, mode {self.mode}",
        ]
        if self.triage is not None:
            lines.append(f"{self.triage.verdict}: {'; '.join(self.triage.reasons)}")
        if self.cost is not None:
            lines.append(self.cost.reason)
        lines += self.why
        if self.rung > 1:
            times = "once" if self.rung == 2 else f"{self.rung - 1} times"
            lines.append(f"rung {self.rung} of the ladder: rolled back {times} before")
        if self.num_tried:
            lines.append(f"proposed {self.num_tried} times before; not all ranks were ready")
        if self.num_unreached:
            named = ", ".join(map(str, self.unreached))
            lines.append(f"not delivered to {self.num_unreached} ranks ({named}); they receive it from the other ranks")
        if self.num_answers:
            # That all ranks act is known from the first result: COMMIT is sealed only if all accepted.
            words = {"accepted": "whose result is awaited"} if self.state == "committed" else {}
            answers = sorted(self.num_answers.items(), reverse=self.state == "committed")
            counts = ", ".join(f"{num} {words.get(outcome, outcome)}" for outcome, num in answers)
            lines.append(f"command {self.command}: of {self.world} ranks, {counts}")
        if self.kind == "rollback":
            caveats = {answer.detail for answer in self.answers if answer.outcome == "accepted" and answer.detail}
            lines += [f"before the boundary: {caveat}" for caveat in sorted(caveats)]
        if self.kind == "hunt":
            lines += [answer.detail for answer in self.answers if answer.outcome == "done" and answer.detail]
        if self.outcome:
            lines.append(self.outcome)
        if self.continuity:
            lines.append(self.continuity)
        if self.hindsight:
            lines.append(self.hindsight)
        return lines


def number_of(trigger: str) -> int:
    """The number of the incident with this id; 0 where there is none."""
    return int(trigger.rpartition("/")[2] or 0)


def with_answers(decision: Decision, answers: dict[int, Answer]) -> Decision:
    """The decision with the ranks' answers so far."""
    counts: dict[str, int] = {}
    for answer in answers.values():
        counts[answer.outcome] = counts.get(answer.outcome, 0) + 1
    most_urgent = sorted(answers.values(), key=lambda answer: (URGENCY.index(answer.outcome), answer.rank))
    pauses = [answer.seconds for answer in answers.values() if math.isfinite(answer.seconds)]
    return msgspec.structs.replace(
        decision,
        num_answers=counts,
        answers=tuple(most_urgent[:MAX_ANSWERS]),
        seconds=max(pauses, default=0.0),
    )
