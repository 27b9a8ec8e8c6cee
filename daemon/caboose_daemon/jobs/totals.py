"""A job's counts since it was created, of which the journal may no longer have the rows.

Design
------
A Prometheus counter may restart at 0 but must not fall by a little: Prometheus would count all that is left again.
Counts made from rows would fall when retention deletes old ones. So the journal keeps the totals themselves, written
with the rows of every turn in which the job changed.
"""

from typing import Self

import msgspec

from caboose_daemon.jobs.job import Job


class JobTotals(msgspec.Struct, frozen=True, kw_only=True):
    """The totals of one job at the end of a turn."""

    num_steps: int
    num_non_finite: int
    findings: tuple[tuple[str, str, int], ...]
    """Rule, severity, and how many episodes began with that severity."""
    incidents: dict[str, int]
    """By lead rule."""
    first_loss: float | None = None
    """The loss where the run began (see `run_start`); unknown in older journals."""

    @classmethod
    def of(cls, job: Job) -> Self:
        return cls(
            num_steps=job.num_steps,
            num_non_finite=job.num_non_finite,
            findings=tuple((*key, count) for key, count in job.finding_counts.items()),
            incidents=job.incident_counts,
            first_loss=job.rollback.start.loss(),
        )

    def restore(self, job: Job) -> None:
        job.num_steps, job.num_non_finite = self.num_steps, self.num_non_finite
        job.finding_counts = {(rule, severity): count for rule, severity, count in self.findings}
        job.incident_counts = dict(self.incidents)
        job.rollback.start.restore(self.first_loss)
