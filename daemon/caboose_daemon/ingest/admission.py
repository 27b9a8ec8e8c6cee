"""Decides what a Hello means: the same rank again, one more rank of this attempt, a new attempt, or an impostor.

Design
------
Ranks agree on nothing among themselves (that would be a collective), so the daemon tells launches apart:

* an incarnation it knows is a reconnect; if its restart count rose, its ranks have rolled back, and it waits until
  all have said so, or for `ROLLBACK_SECONDS`;
* a Hello that fits the current attempt (same launch id, world size and restart count, its place free) joins it;
* any other is a new launch. It begins a new attempt at once if the restart count rose or nobody of the current
  attempt is alive. Otherwise two jobs claim one name: the newcomer waits until the old ranks have been silent for
  `PATIENCE_SECONDS`, and is refused as soon as one of them speaks.
"""

from typing import Literal

from caboose_daemon.jobs.job import Attempt, Job
from caboose_wire import Hello

PATIENCE_SECONDS = 6.0
"""Three heartbeats of an agent."""

ROLLBACK_SECONDS = 3.0
"""How long the first ranks that rolled back wait for the others to say so; they all did, at one step."""

Verdict = Literal["known", "joins", "begins", "waits", "rolled_back"]


def judge(job: Job, hello: Hello, now: float) -> Verdict:
    """What this Hello is to the job."""
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
    """Whether any rank of the attempt was heard of lately and has not left."""
    return any(
        member.state == "live" and now - member.last_seen < PATIENCE_SECONDS for member in attempt.members.values()
    )


def _fits(attempt: Attempt, hello: Hello) -> bool:
    same = (attempt.launch, attempt.world, attempt.agent_attempt)
    return (hello.launch, hello.world, hello.attempt) == same
