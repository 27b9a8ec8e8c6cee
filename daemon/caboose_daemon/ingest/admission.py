"""Decides what a Hello means: a reconnect, one more rank of this attempt, a new attempt, or another job of this name.

Design
------
The ranks exchange nothing to identify a launch (that would be a collective), so the daemon distinguishes launches:

* a Hello proves its launch if its proof equals that of the attempt's ranks (`Hello.proof`); the ranks of a launch
  without a secret have none, and neither has somebody else's Hello then. One on the connection of that very rank needs
  no proof: nobody else can send there;
* a known incarnation with that proof is a reconnect; if its restart count rose, the rank has rolled back, and its Hello
  waits until all ranks have reported that, or for `ROLLBACK_SECONDS`;
* a Hello with that proof that fits the current attempt (same launch id, world size and restart count, its place free)
  joins it;
* any other Hello is a new launch, or somebody who claims to be one. It begins a new attempt at once if a secret proves
  (or its connection shows) that the same launch was restarted, or if no rank of the current attempt is alive: each has
  sent its Bye, its connection is closed, or it was silent for `PATIENCE_SECONDS`. Otherwise it waits for that.

After a restart of the daemon the ranks of the journal have `PATIENCE_SECONDS` to come back: the journal has a digest of
the proof. It has none of an attempt that an earlier version wrote; the first rank that comes back sets it then.
"""

from typing import Literal

from caboose_daemon.jobs.job import Attempt, Job
from caboose_wire import Hello

PATIENCE_SECONDS = 30.0
"""Fifteen heartbeats of an agent."""

ROLLBACK_SECONDS = 3.0
"""How long the first ranks that report a rollback wait for the others; all ranks roll back at one step."""

Verdict = Literal["known", "joins", "begins", "waits", "rolled_back"]


class Names:
    """Whether the names of jobs are taken, at one time: thousands of Hellos may wait for the name of one job."""

    def __init__(self, now: float) -> None:
        self.now = now
        self._taken: dict[tuple[str, int], bool] = {}
        self._last_seen: dict[str, float] = {}

    def is_taken(self, job: Job, attempt: Attempt) -> bool:
        """Whether a rank of the attempt is alive, or may come back."""
        key = (job.name, attempt.number)
        if key not in self._taken:
            self._taken[key] = is_alive(attempt, self.now) or _may_return(attempt, self.now)
        return self._taken[key]

    def last_seen(self, job: Job) -> float:
        """When the last message of any of its ranks arrived."""
        if job.name not in self._last_seen:
            self._last_seen[job.name] = job.last_seen
        return self._last_seen[job.name]


def judge(job: Job, hello: Hello, now: float, *, is_own: bool = False, names: Names | None = None) -> Verdict:
    """What to do with this Hello; `is_own`: it came on the connection of the rank that it is of.

    `names`: what is known at this time, where several Hellos are judged.
    """
    attempt = job.attempt
    if attempt is None:
        return "begins"
    if is_own or attempt.is_proved_by(hello):
        member = attempt.members.get(hello.rank)
        if member is not None and member.hello.incarnation == hello.incarnation:
            return "rolled_back" if hello.attempt > attempt.agent_attempt else "known"
        if _fits(attempt, hello) and member is None:
            return "joins"
        is_same_launch = hello.launch == attempt.launch and (is_own or bool(hello.proof))
        if is_same_launch and hello.attempt > attempt.agent_attempt:
            return "begins"
    return "waits" if (names or Names(now)).is_taken(job, attempt) else "begins"


def is_alive(attempt: Attempt, now: float) -> bool:
    """Whether a rank of the attempt has not left, is connected, and sent a message in the last `PATIENCE_SECONDS`."""
    return any(
        member.state == "live" and not member.is_gone and now - member.last_seen < PATIENCE_SECONDS
        for member in attempt.members.values()
    )


def _may_return(attempt: Attempt, now: float) -> bool:
    """Whether ranks that were alive before a restart of the daemon still have time to come back."""
    return now - attempt.began < PATIENCE_SECONDS and any(m.state == "expected" for m in attempt.members.values())


def _fits(attempt: Attempt, hello: Hello) -> bool:
    same = (attempt.launch, attempt.world, attempt.agent_attempt)
    return (hello.launch, hello.world, hello.attempt) == same
