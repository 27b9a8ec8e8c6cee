"""What is counted of a job from its first day, however much of that the journal still has.

Design
------
Counters that Prometheus reads may begin again at 0 and must not fall by a little: it would take all that is left for
new. Counted from rows they would, as the retention takes old ones. So the journal keeps the totals themselves, written
with the rows of every turn in which the job changed.
"""

from typing import Self

import msgspec

from caboose_daemon.jobs.job import Job


class JobTotals(msgspec.Struct, frozen=True, kw_only=True):
    """One job's, at the end of a turn."""

    num_steps: int
    num_non_finite: int
    findings: tuple[tuple[str, str, int], ...]
    """Rule, severity, and how many episodes began so."""
    incidents: dict[str, int]
    """By lead rule."""

    @classmethod
    def of(cls, job: Job) -> Self:
        """As they stand."""
        return cls(
            num_steps=job.num_steps,
            num_non_finite=job.num_non_finite,
            findings=tuple((*key, count) for key, count in job.finding_counts.items()),
            incidents=job.incident_counts,
        )

    def restore(self, job: Job) -> None:
        """Puts them back."""
        job.num_steps, job.num_non_finite = self.num_steps, self.num_non_finite
        job.finding_counts = {(rule, severity): count for rule, severity, count in self.findings}
        job.incident_counts = dict(self.incidents)
