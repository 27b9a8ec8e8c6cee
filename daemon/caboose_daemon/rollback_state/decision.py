"""A decision: what was proposed for a run, why, and what became of it. The record that an audit reads."""

import math
from typing import Literal

import msgspec

from caboose_daemon.rollback_state.cost import Cost
from caboose_daemon.rollback_state.triage import Triage
from caboose_wire.rollback import CommandKind, RollbackMode

DecisionState = Literal["advised", "sent", "committed", "aborted", "refused", "failed", "expired", "exhausted"]
"""advised: shown, not done. sent: the ranks know. committed: all ranks acted. aborted: none did. refused: never sent.
failed: the ranks agreed and could not; the run has stopped. expired: nothing was heard of it. exhausted: going back
does not help any more, and people are called."""
MAX_ANSWERS = 32
"""Answers kept one by one; all are counted."""
MAX_NAMED = 32
URGENCY = ("failed", "refused", "aborted", "done", "accepted")
NAMES: dict[CommandKind, str] = {
    "rollback": "roll back",
    "snapshot": "take a snapshot",
    "checkpoint": "save a checkpoint",
    "scale_lr": "scale the learning rate",
    "stop": "stop",
    "hunt": "hunt for the first bad number",
}


class Answer(msgspec.Struct, frozen=True):
    """What a rank last said to the command."""

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
    """The newest one that was judged."""
    mode: RollbackMode
    """In force at the time: the lower of the two sides'."""
    kind: CommandKind = "rollback"
    trigger: str = ""
    """The incident's id; empty where somebody asked for it."""
    by: str = ""
    """Who asked."""
    rung: int = 0
    """Of the ladder: 1 for the first rollback, 2 when the same trouble came again, ..."""
    num_tried: int = 0
    """How often it was proposed before and came to nothing."""
    triage: Triage | None = None
    cost: Cost | None = None
    target: int | None = None
    boundary: int | None = None
    onset: int | None = None
    """The step whose batch a hunt runs again."""
    skip: int = 0
    lr_scale: float = 1.0
    why: tuple[str, ...] = ()
    """How the choice was made, or why nothing was done."""
    state: DecisionState = "advised"
    command: int = 0
    """The command's number; 0 where none was sent."""
    group: str = ""
    """The process group it is for."""
    world: int = 0
    expires: float = 0.0
    num_answers: dict[str, int] = {}
    """Ranks by what they last said."""
    answers: tuple[Answer, ...] = ()
    """Of some ranks, the most telling first."""
    num_unreached: int = 0
    unreached: tuple[int, ...] = ()
    """Ranks it could not be sent to; they may have it from the others."""
    closed_time: float | None = None
    closed_step: int | None = None
    """The newest one when time ran out for it."""
    outcome: str = ""
    """What became of it, in a line."""
    seconds: float = 0.0
    """How long the slowest rank's training was held up."""
    steps_lost: int = 0
    continuity: str = ""
    """How the loss went on afterwards; empty until that is known."""

    @property
    def id(self) -> str:
        """Its name: the job's, a stroke, d and its number."""
        return f"{self.job}/d{self.number}"

    @property
    def incident(self) -> int:
        """The number of the incident that it is about; 0 where somebody asked for it."""
        return int(self.trigger.rpartition("/")[2] or 0)

    @property
    def is_open(self) -> bool:
        """Whether its outcome is still to come."""
        return self.state == "sent"

    @property
    def was_paused(self) -> bool:
        """Whether it came to nothing because the run stood still until its time was over: no rank was late."""
        if self.state == "aborted":
            return self.closed_time is not None and self.closed_time >= self.expires > 0
        return self.state == "expired" and self.closed_step is not None and self.closed_step < (self.boundary or 0)

    @property
    def summary(self) -> str:
        """What it is about, in a line."""
        what = NAMES[self.kind]
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
        """Everything about it, line by line."""
        asked = (
            f"asked for by {self.by}" if self.by else f"for incident {self.trigger}" if self.trigger else "asked for"
        )
        lines = [
            f"{self.summary}: {self.state}",
            f"{asked}, at step {self.step} of attempt {self.attempt}, {self.mode}",
        ]
        if self.triage is not None:
            lines.append(f"{self.triage.verdict}: {'; '.join(self.triage.reasons)}")
        if self.cost is not None:
            lines.append(self.cost.reason)
        lines += self.why
        if self.rung > 1:
            times = "once" if self.rung == 2 else f"{self.rung - 1} times"
            lines.append(f"rung {self.rung} of the ladder: it was rolled back {times} before")
        if self.num_tried:
            lines.append(f"proposed {self.num_tried} times before, without all ranks being ready")
        if self.num_unreached:
            named = ", ".join(map(str, self.unreached))
            lines.append(f"could not be sent to {self.num_unreached} ranks ({named}); they have it from the others")
        if self.num_answers:
            said = ", ".join(f"{num} {outcome}" for outcome, num in sorted(self.num_answers.items()))
            lines.append(f"command {self.command}: of {self.world} ranks {said}")
        if self.kind == "hunt":
            lines += [answer.detail for answer in self.answers if answer.outcome == "done" and answer.detail]
        if self.outcome:
            lines.append(self.outcome)
        if self.continuity:
            lines.append(self.continuity)
        return lines


def told(decision: Decision, answers: dict[int, Answer]) -> Decision:
    """The decision with what the ranks have said so far."""
    counts: dict[str, int] = {}
    for answer in answers.values():
        counts[answer.outcome] = counts.get(answer.outcome, 0) + 1
    telling = sorted(answers.values(), key=lambda answer: (URGENCY.index(answer.outcome), answer.rank))
    held_up = [answer.seconds for answer in answers.values() if math.isfinite(answer.seconds)]
    return msgspec.structs.replace(
        decision,
        num_answers=counts,
        answers=tuple(telling[:MAX_ANSWERS]),
        seconds=max(held_up, default=0.0),
    )
