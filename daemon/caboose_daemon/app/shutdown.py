"""How long a daemon that was told to end stays, so that what it saw last is scraped.

Design
------
A daemon that lives and dies with one job is ended in the moment in which that job crashes, which is the moment worth a
page: rules have not spoken yet, and nobody has scraped. So on SIGTERM it may go on for a while, receiving, judging and
serving. It ends as soon as there is nothing to wait for: the jobs ended well, or what became of them has been exported
for as long as every incident is.
"""

from collections.abc import Iterable

from caboose_daemon.jobs.job import Job
from caboose_daemon.out.metrics.incidents import has_risen_lately

NOTICE_SECONDS = 45.0
"""In which rank_silent, at its defaults, says of a process that was killed that it is gone."""


def has_more_to_tell(jobs: Iterable[Job], now: float, since: float, stay_seconds: float) -> bool:
    """Whether something is still to be noticed or scraped; `since` is when the daemon was told to end."""
    return any(_has_more_to_tell(job, now, since, stay_seconds) for job in jobs)


def _has_more_to_tell(job: Job, now: float, since: float, stay_seconds: float) -> bool:
    if any(has_risen_lately(incident, now, stay_seconds) for incident in job.incidents):
        return True
    is_watched = job.state in ("running", "failed") and job.attempt is not None and not job.attempt.is_over
    return is_watched and now - since < NOTICE_SECONDS
