"""Where a command gets what it knows of runs from: the same questions to a daemon and to a journal.

Design
------
Both answer in the API's own shapes, so that a page of the terminal, `--json` and a script see the same thing whoever
was asked. A journal is restored into memory as a daemon that starts on it would, but read-only and without one: it
may be another machine's, or in use.
"""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Protocol

import msgspec

from caboose_daemon.config import Config
from caboose_daemon.jobs.job import Job
from caboose_daemon.jobs.pipeline import Pipeline
from caboose_daemon.jobs.state import State
from caboose_daemon.offline.records.nowhere import Nowhere
from caboose_daemon.out.api import json_shapes
from caboose_daemon.out.api.client import Client, job_path
from caboose_daemon.out.api.declared import declared
from caboose_daemon.out.api.steps_around import steps_around
from caboose_daemon.store import history
from caboose_daemon.store.journal import JournalError, connect

Json = dict[str, Any]


class SourceError(RuntimeError):
    """It cannot be asked, or does not know; the message is one line."""


class RecordSource(Protocol):
    """What can be asked of either; what concerns a job raises where it is not known."""

    name: str

    def jobs(self) -> list[Json]:
        """Every job, the ones heard of most recently first."""

    def incidents(self, job: str) -> list[Json]:
        """Its incidents, open ones first."""

    def decisions(self, job: str) -> list[Json]:
        """What was decided about it, the newest first."""

    def events(self, job: str) -> list[Json]:
        """What was declared, beside validations, oldest first; each thing once."""

    def steps(self, job: str, attempt: int, step: int, *, before: int, after: int) -> Json:
        """Its steps around a moment."""


class LiveSource:
    """A daemon; raises ClientError."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.name = f"the daemon at {client.url}"

    def jobs(self) -> list[Json]:
        """Every job, the ones heard of most recently first."""
        rows: list[Json] = self._client.get("/api/v1/jobs")["jobs"]
        return rows

    def incidents(self, job: str) -> list[Json]:
        """Its incidents, open ones first."""
        rows: list[Json] = self._client.get(f"{job_path(job)}/incidents")["incidents"]
        return rows

    def decisions(self, job: str) -> list[Json]:
        """What was decided about it, the newest first."""
        rows: list[Json] = self._client.get(f"{job_path(job)}/decisions")["decisions"]
        return rows

    def events(self, job: str) -> list[Json]:
        """What was declared, beside validations, oldest first; each thing once."""
        rows: list[Json] = self._client.get(f"{job_path(job)}/events")["events"]
        return rows

    def steps(self, job: str, attempt: int, step: int, *, before: int, after: int) -> Json:
        """Its steps around a moment."""
        where = f"attempt={attempt}&step={step}&before={before}&after={after}"
        answer: Json = self._client.get(f"{job_path(job)}/steps?{where}")
        return answer


class JournalSource:
    """A journal file; raises SourceError."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._path = path.resolve()
        if not path.is_file():
            raise SourceError(f"{path}: no such file; a daemon's journal is `journal.sqlite` in its data_dir")
        config, self._now = Config(), time.time()
        self._state = State(rule_configs=config.rules, started=self._now)
        try:
            history.restore(self._path, self._state, Pipeline(self._state, Nowhere()), self._now, read_only=True)
        except JournalError as error:
            raise SourceError(f"{str(error).partition(';')[0]}; is that a journal of this version?") from None

    def jobs(self) -> list[Json]:
        """Every job, the ones heard of most recently first."""
        jobs = sorted(self._state.jobs.values(), key=lambda job: -job.last_seen)
        return [json_shapes.job_row(job, self._now) for job in jobs]

    def incidents(self, job: str) -> list[Json]:
        """Its incidents, open ones first."""
        return [json_shapes.incident(incident) for incident in self._job(job).incidents]

    def decisions(self, job: str) -> list[Json]:
        """What was decided about it, the newest first."""
        return [json_shapes.decision(decision) for decision in reversed(self._job(job).rollback.decisions)]

    def events(self, job: str) -> list[Json]:
        """What was declared, beside validations, oldest first; each thing once."""
        self._job(job)
        with self._reading() as connection:
            return declared(connection, job)

    def steps(self, job: str, attempt: int, step: int, *, before: int, after: int) -> Json:
        """Its steps around a moment."""
        self._job(job)
        with self._reading() as connection:
            return steps_around(connection, job, attempt, step, before, after)

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(connect(self._path, read_only=True)) as connection:
                yield connection
        except (sqlite3.Error, msgspec.MsgspecError) as error:
            raise SourceError(f"{self.name}: {error}") from None

    def _job(self, name: str) -> Job:
        if name not in self._state.jobs:
            known = ", ".join(sorted(self._state.jobs)[:20]) or "none"
            raise SourceError(f"{self.name}: no job {name!r}; known: {known}")
        return self._state.jobs[name]
