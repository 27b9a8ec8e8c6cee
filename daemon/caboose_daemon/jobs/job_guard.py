"""Catches what fails while a job is processed: it is counted, logged once, and ends neither the loop nor another job.

Design
------
Everything that a peer's message can lead to runs inside `JobGuard.watch`, on the loop's thread. An exception there is
a bug of ours or a message that nobody thought of. It costs the message or the step at hand. `MAX_FAILURES` of them
within `WINDOW_SECONDS` quarantine the job: its reports are received and not judged, no command is sent to it, and that
is shown on the page, in the API and as `caboose_job_quarantined`. Other jobs are not affected.

A quarantine ends by itself, because a run may last for weeks and the cause may be one odd step: after
`QUARANTINE_SECONDS` the job is judged again, from fresh baselines. Each further quarantine lasts twice as long, up to
an hour. A new attempt ends it at once.
"""

import logging
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, Protocol, get_args

logger = logging.getLogger("caboose.daemon")

Stage = Literal["receive", "admission", "step", "tick", "policy", "encode", "send", "journal", "loop"]
"""Where it failed; a closed set, because it is a label."""
STAGES: tuple[Stage, ...] = get_args(Stage)
MAX_FAILURES = 5
WINDOW_SECONDS = 60.0
QUARANTINE_SECONDS = 60.0
LONGEST_SECONDS = 3600.0
MAX_LOGGED = 200
"""Different failures that are logged, over all jobs."""
MAX_KINDS = 64
"""Different exception classes that are counted under their own name."""


@dataclass
class JobFaults:
    """The recent failures of one job, and whether it is in quarantine."""

    times: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_FAILURES))
    until: float = 0.0
    """When the quarantine ends."""
    reason: str = ""
    """Why the job is in quarantine; empty where it is not."""
    num_quarantines: int = 0
    num_failures: int = 0
    num_unjudged: int = 0
    """Reports that were received in quarantine."""

    @property
    def is_quarantined(self) -> bool:
        return bool(self.reason)

    def add(self, what: str, now: float) -> bool:
        """Counts a failure; whether it begins a quarantine."""
        self.num_failures += 1
        self.times.append(now)
        if self.is_quarantined or len(self.times) < MAX_FAILURES or now - self.times[0] > WINDOW_SECONDS:
            return False
        self.until = now + min(LONGEST_SECONDS, QUARANTINE_SECONDS * 2**self.num_quarantines)
        self.reason = what
        self.num_quarantines += 1
        self.times.clear()
        return True

    def release(self) -> None:
        """Ends the quarantine."""
        self.reason, self.until = "", 0.0
        self.times.clear()


class Guarded(Protocol):
    """A job, as far as its guard knows it."""

    name: str
    faults: JobFaults


class JobGuard:
    """Watches the processing of all jobs of a daemon; `num_errors` counts by stage and exception class."""

    def __init__(self, num_errors: Counter[tuple[str, str]]) -> None:
        self._num_errors = num_errors
        self._logged: set[tuple[str, str, str]] = set()

    @contextmanager
    def watch(self, stage: Stage, job: Guarded | None, now: float) -> Iterator[None]:
        """Runs the body; an exception ends the body only."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - see Design: nothing that a job leads to may end the loop
            self.failed(stage, job, error, now)

    def failed(self, stage: Stage, job: Guarded | None, error: Exception, now: float) -> None:
        """Counts and logs a failure, and quarantines a job that keeps failing."""
        kind, name = type(error).__name__, "" if job is None else job.name
        counts = self._num_errors
        is_known = (stage, kind) in counts or len(counts) < MAX_KINDS
        counts[stage, kind if is_known else "other"] += 1
        key = (stage, kind, name)
        if key not in self._logged and len(self._logged) < MAX_LOGGED:
            self._logged.add(key)
            about = f"job {name}" if name else "a message of no job"
            logger.error("%s failed in stage %s; more of this kind are only counted", about, stage, exc_info=error)
        if job is not None and job.faults.add(f"{stage}: {kind}: {str(error)[:200]}", now):
            seconds = job.faults.until - now
            logger.error("job %s is in quarantine for %.0f s: %s", job.name, seconds, job.faults.reason)
