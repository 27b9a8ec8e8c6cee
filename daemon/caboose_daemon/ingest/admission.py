"""Decides what a Hello means: a reconnect, one more rank of this attempt, a new attempt, or another job of this name.

Design
------
The ranks exchange nothing to identify a launch (that would be a collective), so the daemon distinguishes launches:

* a known incarnation is a reconnect; if its restart count rose, the rank has rolled back, and its Hello waits until
  all ranks have reported that, or for `ROLLBACK_SECONDS`;
* a Hello that fits the current attempt (same launch id, world size and restart count, its place free) joins it;
* any other Hello is a new launch. It begins a new attempt at once if the restart count rose or no rank of the current
  attempt is alive. Otherwise two jobs claim one name: the newcomer waits until the old ranks have been silent for
  `PATIENCE_SECONDS`, and is refused as soon as one of them sends a message.
"""

from typing import Literal

from caboose_daemon.jobs.job import Attempt, Job
from caboose_wire import Hello

PATIENCE_SECONDS = 6.0
"""Three heartbeats of an agent."""

ROLLBACK_SECONDS = 3.0
"""How long the first ranks that report a rollback wait for the others; all ranks roll back at one step."""

Verdict = Literal["known", "joins", "begins", "waits", "rolled_back"]


def judge(job: Job, hello: Hello, now: float) -> Verdict:
    """What to do with this Hello."""
    attempt = job.attempt
    if attempt is None:
        return "begins"
    member = attempt.members.get(hello.rank)
    if member is not None and member.hello.incarnation == hello.incarnation:
        return "rolled_back" if hello.attempt > attempt.agent_attempt else "known"
    if _fits(attempt, hello) and member is None:
        return "joins"
    has_restarted = hello.launch == attempt.launch and hello.attempt > attempt.agent_attempt
    return "begins" if has_restarted or not is_alive(attempt, now) else "waits"


def is_alive(attempt: Attempt, now: float) -> bool:
    """Whether a rank of the attempt has not left, and sent a message in the last `PATIENCE_SECONDS`."""
    return any(
        member.state == "live" and now - member.last_seen < PATIENCE_SECONDS for member in attempt.members.values()
    )


def _fits(attempt: Attempt, hello: Hello) -> bool:
    same = (attempt.launch, attempt.world, attempt.agent_attempt)
    return (hello.launch, hello.world, hello.attempt) == same
