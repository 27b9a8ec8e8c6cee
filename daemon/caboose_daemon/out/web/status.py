"""The status that a stream sends once a second: everything at first, then only the changes.

Design
------
A job's status is built at most once a second, for any number of listeners, and the change since the previous one is
encoded once for all of them. A listener states the version it has: if it is the previous one it gets the change,
otherwise everything. So nothing is kept per listener, and a page that missed something only has to drop its version.

All of it runs on the HTTP thread, on copies of the jobs: the state's lock is held for taking those.
"""

import itertools
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec

from caboose_daemon.jobs.state import State
from caboose_daemon.out.api import json_shapes
from caboose_daemon.out.web.rank_columns import LATELY_SECONDS, RankColumns, rows

STATUS_SECONDS = 1.0
FRESH_SECONDS = 0.95
"""A status younger than this is reused."""
MAX_KEPT = 256
"""Maximum statuses in memory; the same as the maximum number of listeners."""


@dataclass
class Status:
    """The status of a job, or of the list of jobs, at one moment."""

    version: int
    taken: float
    now: float
    """Time by the daemon's clock, like all other times."""
    facts: Mapping[str, Any]
    ranks: RankColumns | None = None
    before: "Status | None" = None

    @cached_property
    def whole(self) -> str:
        """Everything, as JSON."""
        body = {"is_whole": True, "now": self.now, **self.facts}
        if self.ranks is not None:
            body["ranks"] = self.ranks.whole()
        return _json(body)

    @cached_property
    def change(self) -> str:
        """What changed since the status before, as JSON."""
        assert self.before is not None, "the first status is sent whole"
        body: dict[str, Any] = {"now": self.now}
        if self.ranks is None or self.before.ranks is None:
            return _json({**body, **_changed_jobs(self.before.facts["jobs"], self.facts["jobs"])})
        old, ranks = self.before.facts, self.ranks.since(self.before.ranks)
        body |= {name: value for name, value in self.facts.items() if name == "job" or value != old.get(name)}
        return _json({**body, "ranks": ranks} if ranks["columns"] else body)


class StatusBoard:
    """The last status of each requested job."""

    def __init__(
        self, state: State, clock: Callable[[], float], budget: int, timer: Callable[[], float] = time.monotonic
    ) -> None:
        self._state = state
        self._clock = clock
        self._budget = budget
        self._timer = timer
        self._kept: OrderedDict[str | None, Status] = OrderedDict()
        self._versions = itertools.count(1)

    def __len__(self) -> int:
        return len(self._kept)

    def message(self, job: str | None, known: int | None) -> tuple[int | None, str]:
        """The version, and the JSON for a listener that has version `known`; an unknown job has no version."""
        status = self._latest(job)
        if status is None:
            return None, "{}"
        if status.before is not None and status.before.version == known:
            return status.version, status.change
        if status.version == known:  # asked a little early
            return known, _json({"now": status.now, **({"jobs": []} if job is None else {"job": job})})
        return status.version, status.whole

    def _latest(self, job: str | None) -> Status | None:
        last = self._kept.get(job)
        if last is not None and self._timer() - last.taken < FRESH_SECONDS:
            return last
        status = self._take(job)
        if status is None:
            self._kept.pop(job, None)
            return None
        if last is not None:
            last.before = None
            status.before = last
        self._kept[job] = status
        self._kept.move_to_end(job)
        if len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)
        return status

    def _take(self, job: str | None) -> Status | None:
        taken, now, ranks = self._timer(), self._clock(), None
        if job is None:
            jobs = [_job(json_shapes.job_row(j, now), now) for j in self._state.copies()]
            facts: Mapping[str, Any] = {"jobs": jobs}
        else:
            found = self._state.copy_of(job)
            if found is None:
                return None
            facts = json_shapes.job_facts(found, now, self._budget)
            ranks = rows(found.attempt)
        table = None if ranks is None else RankColumns(ranks, now)
        return Status(next(self._versions), taken, round(now, 3), facts, table)


def _job(row: json_shapes.Json, now: float) -> json_shapes.Json:
    """A job's row with the time it was last seen (None if recent) instead of the seconds since, without numbers."""
    silent = row.pop("silent_seconds")
    del row["worst"]  # its numbers change at every step
    return {**row, "heard": None if silent < LATELY_SECONDS else int(now - silent)}


def _changed_jobs(before: list[json_shapes.Json], now: list[json_shapes.Json]) -> json_shapes.Json:
    """The changed fields of each job, all fields of new jobs, and the names of removed jobs."""
    known = {row["job"]: row for row in before}
    changed = []
    for row in now:
        old = known.pop(row["job"], {})
        fields = {name: value for name, value in row.items() if name not in old or value != old[name]}
        if fields:
            changed.append({"job": row["job"], **fields})
    return {"jobs": changed, "gone": list(known)}


def _json(body: Mapping[str, Any]) -> str:
    return msgspec.json.encode(body).decode()
