"""Follows what comes after a rollback or a resume: begins the continuity check, and acts on its verdict.

Design
------
Called by the policy whenever it looks at a job. A rollback after which the loss goes on closes what it cut for good.
One after which it does not is trouble again, which no rule will find: their baselines are new, and learn the loss as it
is. So it is triaged here, against the level from before the snapshot.
"""

import math

from caboose_daemon.jobs.job import Attempt, Job
from caboose_daemon.jobs.pipeline import Pipeline, Sink
from caboose_daemon.rollback import bad_spans
from caboose_daemon.rollback_state.continuity import Continuity, level_at, look
from caboose_daemon.rollback_state.triage import Losses, Triage, judge


class Aftermath:
    """What became of rollbacks and resumes."""

    def __init__(self, pipeline: Pipeline, sink: Sink) -> None:
        self._pipeline = pipeline
        self._sink = sink

    def follow(self, job: Job, attempt: Attempt) -> tuple[str, Triage] | None:
        """Looks how the loss goes on; what is wrong and by which incident it was rolled back, if it does not."""
        record = job.rollback
        if record.check is None or record.check.attempt != attempt.number:
            record.check = _begin(job, attempt)
        check = record.check
        if check is None or check.state in ("ok", "unknown") or (check.state == "broken" and not check.decision):
            return None
        losses = Losses.of(job.recent, attempt.number)
        record.check = check = look(check, losses)
        decision = record.find(check.decision) if check.decision else None
        if decision is None or check.state == "checking":
            return None
        amended = record.amend(decision.number, continuity=check.text)
        if amended is not None:
            self._sink.decision_changed(job, amended)
        if check.state == "ok":
            for number in bad_spans.cut_before(job, attempt.number):
                self._pipeline.end_for_good(job, number, check.text)
        if check.state == "ok" or not decision.trigger:
            return None
        triage = judge(losses, check.since + 1, num_skipped=record.num_skipped, before=check.before)
        return None if triage.verdict == "unmoved" else (decision.trigger, triage)


def _begin(job: Job, attempt: Attempt) -> Continuity | None:
    """The check of an attempt that follows another; None where there is nothing to compare it with."""
    if not attempt.start_step or attempt.number < 2:
        return None
    origin, number, trouble = attempt.start_step, 0, 0.0
    if attempt.reason == "rollback":
        decision = job.rollback.rollback_at(attempt.start_step)
        if decision is None or decision.target is None:
            return None
        origin, number = decision.target, decision.number
        if decision.triage is not None and math.isfinite(decision.triage.excess):
            trouble = decision.triage.excess
    return Continuity(
        attempt=attempt.number,
        since=attempt.start_step,
        origin=origin,
        decision=number,
        before=level_at(job.recent, origin, attempt.number),
        trouble=trouble,
    )
