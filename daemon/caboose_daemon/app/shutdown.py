"""Whether a daemon that received SIGTERM should stay, so that its last incidents are scraped.

Design
------
A daemon that runs with one job is stopped at the moment that job crashes, which is the moment that matters: the rules
have not fired yet and nothing is scraped. So on SIGTERM it may continue for a while, receiving, judging and serving. It
ends as soon as nothing is left to wait for: the jobs ended well, or their incidents have been exported for as long as
every incident is.
"""

from collections.abc import Iterable

from caboose_daemon.jobs.job import Job
from caboose_daemon.out.metrics.incidents import has_risen_lately

NOTICE_SECONDS = 45.0
"""Time in which rank_silent, at its defaults, detects a killed process."""


def has_unscraped_incidents(jobs: Iterable[Job], now: float, since: float, stay_seconds: float) -> bool:
    """Whether an incident may still open or be scraped; `since` is the time of SIGTERM."""
    return any(_has_unscraped_incidents(job, now, since, stay_seconds) for job in jobs)


def _has_unscraped_incidents(job: Job, now: float, since: float, stay_seconds: float) -> bool:
    if any(has_risen_lately(incident, now, stay_seconds) for incident in job.incidents):
        return True
    is_watched = job.state in ("running", "crashed") and job.attempt is not None and not job.attempt.is_over
    return is_watched and now - since < NOTICE_SECONDS
