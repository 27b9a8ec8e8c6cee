"""What rank 0 of a job is sent about it: where its page is, and what is wrong.

Sent at once after its Hello, because a first try may be over in a second, and when another incident is the worst one or
its severity changed: not at every step of an open incident, whose numbers change.
"""

from urllib.parse import quote

from caboose_daemon.jobs.job import Job
from caboose_daemon.jobs.state import State
from caboose_wire import Verdict

CHECK_SECONDS = 1.0
MAX_SUMMARY = 200

Key = tuple[str, int | None, str]


class Verdicts:
    """Remembers what was sent to which rank 0."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._sent: dict[str, Key] = {}
        """By job: the incarnation of its rank 0, the worst incident, the health."""
        self._next_check = 0.0

    def hurry(self) -> None:
        """A rank has introduced itself: the next turn checks."""
        self._next_check = 0.0

    def changed(self, now: float) -> list[tuple[Job, Verdict]]:
        """The jobs whose rank 0 does not know the latest verdict, about once a second; it counts as sent."""
        if now < self._next_check:
            return []
        self._next_check = now + CHECK_SECONDS
        found, sent = [], self._sent
        self._sent = {}
        for job in self._state.jobs.values():
            with self._state.guard.watch("send", job, now):
                key = self._key(job)
                if key is not None:
                    self._sent[job.name] = key
                    if sent.get(job.name) != key:
                        found.append((job, self._verdict(job)))
        return found

    def _key(self, job: Job) -> Key | None:
        """What decides whether rank 0 of a job knows the latest verdict; None without a rank 0 to send it to."""
        member = None if job.attempt is None else job.attempt.members.get(0)
        if member is None or member.state != "live" or member.is_gone:
            return None
        worst = job.incidents.open[0] if job.incidents.open else None
        return member.hello.incarnation, None if worst is None else worst.number, job.health

    def _verdict(self, job: Job) -> Verdict:
        worst = job.incidents.open[0] if job.incidents.open else None
        return Verdict(
            job=job.name,
            url=f"{self._state.url}?job={quote(job.name, safe='')}",
            health=job.health,
            summary=""
            if worst is None
            else f"{worst.rule} since step {worst.onset_step:,}: {worst.summary}"[:MAX_SUMMARY],
        )
