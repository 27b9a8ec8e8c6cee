"""What a rollback that was only advised would have saved, once its incident is over.

Design
------
While the incident is open its triage counts the steps of training that waiting has lost. When it is over, or the run
is, that number is final, and is compared with what the advised rollback would have lost. So the owner of a run can see
whether `auto` would have decided well before allowing it. A problem that came back later counts for itself.
"""

import math

from caboose_daemon.jobs.job import Job
from caboose_daemon.jobs.pipeline import Sink
from caboose_daemon.rollback_state.decision import Decision


def look_back(job: Job, sink: Sink) -> None:
    """Notes what waiting has lost so far, and closes the advice on incidents that are over."""
    record = job.rollback
    for number, triage in record.triages.items():
        lost = triage.lost if math.isfinite(triage.excess) else float(triage.age)
        record.lost_by_waiting[number] = lost
    for decision in list(record.decisions):
        if decision.state != "advised" or decision.kind != "rollback" or decision.saved is not None:
            continue
        incident = job.incidents.find(decision.incident)
        is_over = job.state != "running" or incident is None or not incident.is_open
        if is_over and decision.incident in record.lost_by_waiting:
            _close(job, decision, record.lost_by_waiting.pop(decision.incident), sink)


def _close(job: Job, decision: Decision, lost: float, sink: Sink) -> None:
    would = math.nan if decision.cost is None else decision.cost.going_back
    if not math.isfinite(would):
        return
    saved = lost - would
    verdict = f"acting would have saved {saved:.0f}" if saved >= 0 else f"acting would have cost {-saved:.0f} more"
    text = f"afterwards: waiting lost {lost:.0f} steps of training, a rollback would have lost {would:.0f}: {verdict}"
    amended = job.rollback.amend(decision.number, saved=saved, hindsight=text)
    if amended is not None:
        sink.decision_changed(job, amended)
