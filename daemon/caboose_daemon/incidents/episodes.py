"""Joins a rule's findings on consecutive steps into one episode, so that a lasting condition is reported once.

Design
------
A rule returns a finding at every step of a lasting condition, with the same onset. Those belong to one episode: it
keeps the first and the last finding, the highest severity, and counts. It ends with a finding of state `resolved`, with
a finding of another onset, which begins the next episode, or with its attempt. The log is the only place that knows
which episodes are open: the engine asks it. Episodes are what pages, metrics and the
journal show; per-step findings pass through.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.shallow import shallow

MAX_KEPT = 200


@dataclass(frozen=True)
class Episode:
    """One condition, from its first finding to its last."""

    id: int
    attempt: int
    first: Finding
    last: Finding
    severity: Severity
    num_findings: int
    detected_time: float
    last_time: float
    is_open: bool
    worst: Finding
    """The first finding at the highest severity."""
    reported_step: int
    """The step of the first finding above info; of the first finding while there is none."""

    @property
    def rule(self) -> str:
        return self.first.rule

    @property
    def part(self) -> str:
        """The part of the job, where several models are trained."""
        return self.first.part


class EpisodeLog:
    """The episodes of one job: the open one of each rule and part, and the recent closed ones."""

    def __init__(self, next_id: int = 1) -> None:
        self._next_id = next_id
        self._open: dict[tuple[str, str], Episode] = {}
        self._closed: deque[Episode] = deque(maxlen=MAX_KEPT)

    def add(self, finding: Finding, attempt: int, now: float) -> list[Episode]:
        """Takes a finding; returns the episodes that changed."""
        current = self._open.get((finding.rule, finding.part))
        changed = []
        if current is not None and (current.first.onset_step, current.attempt) != (finding.onset_step, attempt):
            changed.append(self._close(current))
            current = None
        if current is None:
            if finding.state == "resolved":
                return changed  # it was already closed
            current = Episode(
                id=self._next_id,
                attempt=attempt,
                first=finding,
                last=finding,
                severity=finding.severity,
                num_findings=1,
                detected_time=now,
                last_time=now,
                is_open=True,
                worst=finding,
                reported_step=finding.step,
            )
            self._next_id += 1
        else:
            is_worse = finding.severity.rank > current.severity.rank
            current = replace(
                current,
                last=finding,
                severity=finding.severity if is_worse else current.severity,
                num_findings=current.num_findings + 1,
                last_time=now,
                worst=finding if is_worse else current.worst,
                reported_step=finding.step if is_worse and current.severity is Severity.INFO else current.reported_step,
            )
        self._open[finding.rule, finding.part] = current
        changed.append(self._close(current) if finding.state == "resolved" else current)
        return changed

    def close_all(self) -> list[Episode]:
        """Ends what is open, because its attempt has ended."""
        return [self._close(episode) for episode in list(self._open.values())]

    def restore(self, episodes: list[Episode]) -> None:
        """Takes over what a journal kept, oldest first."""
        for episode in episodes:
            self._next_id = max(self._next_id, episode.id + 1)
            if episode.is_open:
                self._open[episode.rule, episode.part] = episode
            else:
                self._closed.append(episode)

    def copy(self) -> "EpisodeLog":
        """The same episodes in a log of its own, for a reader on another thread."""
        log = shallow(self)
        log.unshare()
        return log

    def unshare(self) -> None:
        """Gives it containers that no other log has."""
        self._open, self._closed = dict(self._open), self._closed.copy()

    def _close(self, episode: Episode) -> Episode:
        closed = replace(episode, is_open=False)
        self._open.pop((episode.rule, episode.part), None)
        self._closed.append(closed)
        return closed

    def open_of(self, rule: str, part: str = "") -> Episode | None:
        """The open episode of a rule; it has at most one of the job and of each part."""
        return self._open.get((rule, part))

    @property
    def open(self) -> list[Episode]:
        """Open episodes, the worst first."""
        return sorted(self._open.values(), key=lambda e: (-e.severity.rank, e.id))

    def __iter__(self) -> Iterator[Episode]:
        """Newest first, open ones before closed ones."""
        yield from sorted(self._open.values(), key=lambda e: -e.id)
        yield from reversed(self._closed)
