"""Follows a rollback or a resume: starts the continuity check and acts on its verdict.

Design
------
Called by the policy at each of its checks of a job. If the loss continues after a rollback, the incidents that the
rollback cut are resolved. If it does not, no rule detects that: the rules' baselines are new and learn the loss as it
is. So it is triaged here, against the level from before the snapshot.
"""

import math

from caboose_daemon.jobs.job import Attempt, Job
from caboose_daemon.jobs.pipeline import Pipeline, Sink
from caboose_daemon.rollback import bad_spans
from caboose_daemon.rollback_state.continuity import Continuity, level_at, update
from caboose_daemon.rollback_state.loss_level import Losses
from caboose_daemon.rollback_state.triage import Triage, judge
from caboose_daemon.steps.settings import number


class Aftermath:
    """Checks how the loss continues after rollbacks and resumes."""

    def __init__(self, pipeline: Pipeline, sink: Sink) -> None:
        self._pipeline = pipeline
        self._sink = sink

    def follow(self, job: Job, attempt: Attempt) -> tuple[str, Triage] | None:
        """Updates the continuity check; the incident's id and the triage if the loss does not continue."""
        record = job.rollback
        if record.check is None or record.check.attempt != attempt.number:
            record.check = _begin(job, attempt)
        check = record.check
        if check is None or check.state in ("ok", "unknown") or (check.state == "broken" and not check.decision):
            return None
        losses = Losses.of(job.recent, attempt.number)
        record.check = check = update(check, losses)
        decision = record.find(check.decision) if check.decision else None
        if decision is None or check.state == "checking":
            return None
        amended = record.amend(decision.number, continuity=check.text)
        if amended is not None:
            self._sink.decision_changed(job, amended)
        if check.state == "ok":
            for incident in bad_spans.cut_before(job, attempt.number):
                self._pipeline.end_for_good(job, incident, check.text)
        if check.state == "ok" or not decision.trigger:
            return None
        triage = judge(
            losses,
            check.since + 1,
            num_skipped=record.num_skipped,
            before=check.before,
            start=start_of(job),
            total_steps=number("total_steps", job.config, job.facts),
        )
        return None if triage.verdict == "unmoved" else (decision.trigger, triage)


def start_of(job: Job) -> float | None:
    """The loss where the job's run began, or chance where that is known and lower."""
    return job.rollback.start.loss(number("num_classes", job.config, job.facts))


def _begin(job: Job, attempt: Attempt) -> Continuity | None:
    """The check of an attempt that follows another; None if there is nothing to compare with."""
    if not attempt.start_step or attempt.number < 2:
        return None
    origin, number, excess = attempt.start_step, 0, 0.0
    if attempt.reason == "rollback":
        decision = job.rollback.rollback_at(attempt.start_step)
        if decision is None or decision.target is None:
            return None
        origin, number = decision.target, decision.number
        if decision.triage is not None and math.isfinite(decision.triage.excess):
            excess = decision.triage.excess
    return Continuity(
        attempt=attempt.number,
        since=attempt.start_step,
        origin=origin,
        decision=number,
        before=level_at(job.recent, origin, attempt.number),
        excess=excess,
    )
