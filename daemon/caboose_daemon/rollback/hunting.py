"""Which trouble calls for a hunt, and on which snapshot it is made.

Design
------
A hunt is asked for once for each incident in which a loss or a gradient was not finite, before a rollback is thought
of: afterwards the batch is gone, and the ranks' attention with it. It goes the way of every command, and costs a run at
most the few steps until its boundary and the seconds that it takes. If it comes to nothing, it is not asked for again.

The snapshot is the newest from before the first bad step that is ready on all ranks, however close: what is wanted is
the weights that the batch was run on, not a place that is safe to go on from. Where there is none, it is made on the
weights as they are, which still finds what is wrong with the batch.
"""

from caboose_daemon.incidents.incident import Incident
from caboose_daemon.jobs.job import Attempt, Job
from caboose_daemon.rollback.target import common

RULE = "non_finite"
ANSWER_SECONDS = 3.0
"""After the first rank's answer, for those of the others."""


def broken(job: Job, attempt: Attempt) -> tuple[Incident, int] | None:
    """The open incident in which a number broke, the worst first, and the step it broke at."""
    for incident in job.incidents.open:
        for member in incident.episodes:
            is_current = member.is_open and member.rule == RULE and member.attempt == attempt.number
            if is_current and member.worst.values.get("steps", 0.0) >= 1.0:
                return incident, member.first.onset_step
    return None


def wanted(job: Job, attempt: Attempt) -> tuple[Incident, int] | None:
    """What should be hunted now without being asked; nothing where that was tried, or people have it in hand."""
    record = job.rollback
    found = broken(job, attempt)
    if found is None or found[0].acknowledged is not None or not can_hunt(job, attempt):
        return None
    is_tried = any(d.kind == "hunt" and d.trigger == found[0].id for d in record.decisions)
    return None if is_tried else found


def is_awaited(job: Job, attempt: Attempt, now: float) -> bool:
    """Whether ranks are still telling what their hunt found; a next command would cut them short."""
    last, answers = job.rollback.last_command, job.rollback.answers.values()
    if last is None or last.kind != "hunt" or last.state != "committed" or last.closed_time is None:
        return False
    is_complete = sum(answer.outcome != "accepted" for answer in answers) >= attempt.world
    return not is_complete and now < last.closed_time + ANSWER_SECONDS


def can_hunt(job: Job, attempt: Attempt) -> bool:
    """Whether every rank keeps its batches, and has hunts left."""
    holdings = job.rollback.holdings
    return len(holdings) >= attempt.world and all(held.can_hunt for held in holdings.values())


def snapshot_for(job: Job, attempt: Attempt, onset: int | None) -> tuple[int, str]:
    """The snapshot to hunt on, 0 for none, and a line on the choice."""
    ready = [step for step in common(job.rollback.holdings, attempt.world) if onset is None or step < onset]
    before = "" if onset is None else f" from before step {onset}"
    if not ready:
        return 0, f"no snapshot{before} is ready on all ranks: it is run on the weights as they are"
    return ready[-1], f"snapshot of step {ready[-1]}: the newest{before} that is ready on all {attempt.world} ranks"
