"""How much of the loop's time a job may take while other jobs wait.

Design
------
Judging a step takes a millisecond or more, whatever its number of ranks, so a job of one rank with thousands of steps a
second could take all of the loop's time. A turn is short for that reason: each job of several has `SLICE_SECONDS` of it
(at least one step), also while nobody else waits, because somebody's report may arrive the next moment. What is left
waits in its alignment for the next turn, behind the others. A job that has `FULL_STEPS` waiting while others wait sends
more than the daemon can judge: its reports are dropped unread until `LOW_STEPS` are left, counted, and the log names
it. That is more than a rank sends at once when a daemon comes back (its last 1,000 reports).
"""

import logging
from dataclasses import dataclass

logger = logging.getLogger("caboose.daemon")

SLICE_SECONDS = 0.001
FULL_STEPS = 1500
LOW_STEPS = 500
LOG_SECONDS = 60.0


@dataclass
class JobLoad:
    """Whether a job sends more than its share."""

    is_throttled: bool = False
    num_throttled: int = 0
    """Messages that were dropped unread."""
    next_log: float = 0.0

    def note(self, name: str, num_open: int, now: float, *, was_cut: bool) -> None:
        """After a turn: how many steps wait, and whether the job had to stop for the others."""
        if self.is_throttled:
            self.is_throttled = num_open > LOW_STEPS
        elif was_cut and num_open >= FULL_STEPS:
            self.is_throttled = True
            if now >= self.next_log:
                self.next_log = now + LOG_SECONDS
                logger.warning(
                    "job %s sends more steps than this daemon can judge beside its other jobs: %d wait, and some "
                    "reports are dropped (caboose_job_throttled_messages_total); give it a daemon of its own",
                    name,
                    num_open,
                )
