"""Which incidents need a hunt, and which snapshot it runs on.

Design
------
A hunt is requested once per incident with a non-finite loss or gradient, before a rollback is considered: after a
rollback the batch is gone. It is sent like every command and costs the run the few steps until its boundary plus the
seconds it takes. If it fails, it is not requested again.

The snapshot is the newest from before the first bad step that is ready on all ranks, however close: the hunt needs the
weights the batch ran on, not a safe point to continue from. Without a snapshot it runs on the current weights, which
still finds a fault in the batch.
"""

from caboose_daemon.incidents.incident import Incident
from caboose_daemon.jobs.job import Attempt, Job
from caboose_daemon.rollback.target import common

RULE = "non_finite"
ANSWER_SECONDS = 3.0
"""Time after the first rank's answer to wait for the others."""


def broken(job: Job, attempt: Attempt) -> tuple[Incident, int] | None:
    """The worst open incident with a non-finite number, and the step where it appeared."""
    for incident in job.incidents.open:
        for member in incident.episodes:
            is_current = member.is_open and member.rule == RULE and member.attempt == attempt.number
            if is_current and member.worst.values.get("steps", 0.0) >= 1.0:
                return incident, member.first.onset_step
    return None


def wanted(job: Job, attempt: Attempt) -> tuple[Incident, int] | None:
    """What to hunt automatically; None if it was tried before or the incident is acknowledged."""
    record = job.rollback
    found = broken(job, attempt)
    if found is None or found[0].acknowledged is not None or not can_hunt(job, attempt):
        return None
    is_tried = any(d.kind == "hunt" and d.trigger == found[0].id for d in record.decisions)
    return None if is_tried else found


def is_awaited(job: Job, attempt: Attempt, now: float) -> bool:
    """Whether ranks are still reporting the hunt's result; another command would interrupt them."""
    last, answers = job.rollback.last_command, job.rollback.answers.values()
    if last is None or last.kind != "hunt" or last.state != "committed" or last.closed_time is None:
        return False
    is_complete = sum(answer.outcome != "accepted" for answer in answers) >= attempt.world
    return not is_complete and now < last.closed_time + ANSWER_SECONDS


def can_hunt(job: Job, attempt: Attempt) -> bool:
    """Whether every rank keeps its batches and has hunts left."""
    holdings = job.rollback.holdings
    return len(holdings) >= attempt.world and all(held.can_hunt for held in holdings.values())


def snapshot_for(job: Job, attempt: Attempt, onset: int | None) -> tuple[int, str]:
    """The snapshot to hunt on (0 for none) and the reason."""
    ready = [step for step in common(job.rollback.holdings, attempt.world) if onset is None or step < onset]
    before = "" if onset is None else f" from before step {onset}"
    if not ready:
        return 0, f"no snapshot{before} is ready on all ranks: using the current weights"
    return ready[-1], f"snapshot of step {ready[-1]}: the newest{before} ready on all {attempt.world} ranks"
