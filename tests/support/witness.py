"""Records what a daemon showed, and when, and finds what of it is missing after a restart.

What was shown of one thing (a decision, an incident, ...) is a list of versions, in the order of the live stream. After
a restart the thing must be as it was shown last, or later.
"""

import json
import threading
import time
from typing import Any

from caboose_daemon.jobs.job import Job
from caboose_daemon.out.api import json_shapes

Key = tuple[Any, ...]
OF_FINDINGS = ("members", "last_step")
"""What an incident shows of its findings."""


def key_of(kind: str, row: dict[str, Any]) -> Key:
    """What a row is about; rows with one key are versions of one thing."""
    names = {
        "step": ("attempt", "step"),
        "finding": ("id",),
        "incident": ("number",),
        "event": ("time", "kind"),
        "decision": ("number",),
        "ledger": ("kind", "name"),
        "attempt": ("attempt",),
    }[kind]
    return (kind, *(row[name] for name in names))


def kept(job: Job) -> dict[Key, Any]:
    """All that a restored job has, in the form in which it is shown."""
    rows = [
        *(("step", json_shapes.step(summary)) for summary in job.recent),
        *(("finding", json_shapes.episode(episode)) for episode in job.episodes),
        *(("incident", json_shapes.incident(incident)) for incident in job.incidents),
        *(("event", json_shapes.event(event)) for event in job.events),
        *(("decision", json_shapes.decision(decision)) for decision in job.rollback.decisions),
        *(("ledger", json_shapes.entry(entry)) for entry in job.rollback.ledger),
        *(("attempt", {"attempt": number}) for number in range(1, job.num_attempts + 1)),
    ]
    return {key_of(kind, row): own(kind, json.loads(json.dumps(row))) for kind, row in rows}


def own(kind: str, row: dict[str, Any]) -> dict[str, Any]:
    """A row without what it takes from others: an incident shows its findings, which have rows of their own."""
    return {name: value for name, value in row.items() if kind != "incident" or name not in OF_FINDINGS}


class Witness:
    """What the daemon showed, in order; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._versions: dict[Key, list[Any]] = {}
        """In the order of the live stream."""
        self._streamed: list[tuple[float, Key, int]] = []
        """When, what, and which of its versions."""
        self._seen: list[tuple[float, Key, Any]] = []
        """What the API showed."""
        self.undone: set[Key] = set()
        """What was asked to be as it was before: an earlier version may be the last one, if nobody saw the answer."""

    def stream(self, kind: str, row: dict[str, Any]) -> None:
        """The live stream has delivered this."""
        assert row.pop("is_committed", True), f"shown before it was committed: {kind} {row}"
        row.pop("job")
        key = key_of(kind, row)
        with self._lock:
            versions = self._versions.setdefault(key, [])
            versions.append(own(kind, row))
            self._streamed.append((time.monotonic(), key, len(versions) - 1))

    def see(self, kind: str, row: dict[str, Any]) -> None:
        """The API has answered with this."""
        with self._lock:
            self._seen.append((time.monotonic(), key_of(kind, row), own(kind, row)))

    def latest(self, kind: str) -> list[Any]:
        """The last version of everything of a kind that the stream has delivered."""
        with self._lock:
            return [versions[-1] for key, versions in self._versions.items() if key[0] == kind]

    def missing(self, found: dict[Key, Any], before: float, *, is_whole: bool) -> list[str]:
        """What was shown before that time, and is not there; `is_whole`: nothing is there that was never shown."""
        with self._lock:
            versions = {key: list(rows) for key, rows in self._versions.items()}
            seen = list(self._seen)
            least = {key: number for shown, key, number in self._streamed if shown < before}
        for shown, key, row in seen:
            rows = versions.setdefault(key, [])
            if row not in rows:  # the stream had no time to deliver it
                rows.append(row)
            if shown < before:
                least[key] = max(least.get(key, 0), rows.index(row))
        return [
            problem
            for key, number in least.items()
            if (problem := _problem(key, versions[key], number, found.get(key), is_whole))
            and not (key in self.undone and not is_whole and found.get(key) in versions[key])
        ]


def _problem(key: Key, versions: list[Any], number: int, found: Any, is_whole: bool) -> str:
    """Why what was found is not the version that was shown, or a later one; empty if it is."""
    if found is None:
        is_gone = any(row.get("is_held") is False for row in versions[number:])
        is_gone |= not is_whole and key[:2] == ("ledger", "snapshot")  # the ranks have dropped it since
        return "" if is_gone else f"{key} is lost: {versions[number]}"
    if found in versions[number:] or (not is_whole and found not in versions[:number]):
        return ""
    shown = versions[number]
    fields = {
        name: (found.get(name), shown.get(name)) for name in {*found, *shown} if found.get(name) != shown.get(name)
    }
    return f"{key} has other fields than version {number} of {len(versions)}, found and shown: {fields}"
