"""Where runs are read from: a running daemon or a journal file, asked the same questions.

Design
------
Both answer in the API's JSON shapes, so a terminal page, `--json` and a script see the same thing. A journal is
restored into memory as a daemon that starts on it would do, but read-only: it may belong to another machine or be in
use. A log of another tool answers fewer questions; `from_log` reads it.
"""

import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from caboose_daemon.config import Config
from caboose_daemon.incidents.incident import Incident
from caboose_daemon.jobs.job import Job
from caboose_daemon.jobs.pipeline import Pipeline, Sink
from caboose_daemon.jobs.state import State
from caboose_daemon.offline.runs.rebuilding import rebuilt
from caboose_daemon.offline.runs.run import Json, RunError
from caboose_daemon.out.api import json_shapes
from caboose_daemon.out.api.client import Client, ClientError, job_path
from caboose_daemon.out.api.declared import declared
from caboose_daemon.out.api.steps_around import steps_around
from caboose_daemon.out.api.update_history import typical_updates
from caboose_daemon.store.database import JournalError
from caboose_daemon.store.history import HistoryReader, read_jobs
from caboose_daemon.store.sample_history import SampleReader

MAX_NAMES = 20
"""Job names in an error."""


class HistorySource(Protocol):
    """What can be asked about the past of jobs; RunError where it does not answer, or does not know the job."""

    name: str
    """In messages."""

    def jobs(self) -> list[Json]:
        """Every job, the most recently heard first."""

    def incidents(self, job: str) -> list[Json]:
        """Its incidents, open ones first."""

    def decisions(self, job: str) -> list[Json]:
        """Its rollback decisions, newest first."""

    def events(self, job: str) -> list[Json]:
        """Its declared events other than validations, oldest first, each once."""


class RunSource(HistorySource, Protocol):
    """What a daemon and a journal can be asked besides."""

    kind: Literal["daemon", "journal"]
    where: str
    """The daemon's address or the file."""
    max_points: int
    """Rows of a series at most; a longer run comes in buckets that keep their extremes."""

    def detail(self, job: str) -> Json:
        """One job with its ranks, settings and blind spots."""

    def series(self, job: str, points: int) -> list[Json]:
        """Its curves in about `points` rows."""

    def found(self, job: str, incidents: Sequence[Json]) -> list[Incident]:
        """These incidents as the daemon keeps them, the first opened first."""

    def ledger(self, job: str) -> list[Json]:
        """Its snapshots and checkpoints."""

    def latest_sample(self, job: str) -> Json | None:
        """Its layers at the last sampled step."""

    def updates(self, job: str) -> list[Json]:
        """Its typical update-to-weight ratio at each sampled step, oldest first."""

    def steps(self, job: str, attempt: int, step: int, *, before: int, after: int) -> Json:
        """Its steps around one step."""


class DaemonSource:
    """A running daemon, asked over its API."""

    kind: Literal["daemon", "journal"] = "daemon"
    max_points = 5000

    def __init__(self, client: Client) -> None:
        self._client = client
        self.where = client.url
        self.name = f"the daemon at {client.url}"

    def jobs(self) -> list[Json]:
        return self._rows("/api/v1/jobs", "jobs")

    def detail(self, job: str) -> Json:
        answer: Json = self._get(job_path(job))
        return answer

    def series(self, job: str, points: int) -> list[Json]:
        return self._rows(job_path(job, f"/series?points={points}"), "steps")

    def incidents(self, job: str) -> list[Json]:
        return self._rows(job_path(job, "/incidents"), "incidents")

    def found(self, job: str, incidents: Sequence[Json]) -> list[Incident]:
        return list(rebuilt(job, incidents, self._rows(job_path(job, "/findings"), "findings")))

    def decisions(self, job: str) -> list[Json]:
        return self._rows(job_path(job, "/decisions"), "decisions")

    def ledger(self, job: str) -> list[Json]:
        return self._rows(job_path(job, "/ledger"), "entries")

    def latest_sample(self, job: str) -> Json | None:
        sample: Json | None = self._get(job_path(job, "/sample"))["sample"]
        return sample

    def updates(self, job: str) -> list[Json]:
        try:
            return self._rows(job_path(job, "/updates"), "updates")
        except RunError:  # a daemon of an older version
            return []

    def events(self, job: str) -> list[Json]:
        return self._rows(job_path(job, "/events"), "events")

    def steps(self, job: str, attempt: int, step: int, *, before: int, after: int) -> Json:
        where = f"attempt={attempt}&step={step}&before={before}&after={after}"
        answer: Json = self._get(job_path(job, f"/steps?{where}"))
        return answer

    def _rows(self, path: str, key: str) -> list[Json]:
        rows: list[Json] = self._get(path)[key]
        return rows

    def _get(self, path: str) -> Any:
        try:
            return self._client.get(path)
        except ClientError as error:
            raise RunError(str(error)) from None


class JournalSource:
    """A journal file, also while a daemon writes it."""

    kind: Literal["daemon", "journal"] = "journal"
    max_points = 200_000

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise RunError(f"{path}: no such file; a daemon's journal is `journal.sqlite` in its data_dir")
        self.name = self.where = str(path)
        self._path = path.resolve()
        self._now = time.time()
        try:
            pipeline = Pipeline(State(rule_configs=Config().rules, started=self._now), Sink())
            self._jobs = {job.name: job for job in read_jobs(path, pipeline.make_attempt, self._now)}
        except JournalError as error:
            raise RunError(str(error)) from None

    def with_steps(self) -> list[str]:
        """The jobs that have steps, the last started first."""
        return [name for name, job in self._jobs.items() if job.recent]

    def jobs(self) -> list[Json]:
        jobs = sorted(self._jobs.values(), key=lambda job: -job.last_seen)
        return [json_shapes.job_row(job, self._now) for job in jobs]

    def detail(self, job: str) -> Json:
        return json_shapes.job_detail(self._job(job), self._now, Config().rollback.budget)

    def series(self, job: str, points: int) -> list[Json]:
        with self._reading(job) as reader:
            return reader.series(job, points)

    def incidents(self, job: str) -> list[Json]:
        return [json_shapes.incident(incident) for incident in self._job(job).incidents]

    def found(self, job: str, incidents: Sequence[Json]) -> list[Incident]:
        return sorted(self._job(job).incidents, key=lambda incident: incident.number)

    def decisions(self, job: str) -> list[Json]:
        return [json_shapes.decision(decision) for decision in reversed(self._job(job).rollback.decisions)]

    def ledger(self, job: str) -> list[Json]:
        return [json_shapes.entry(entry) for entry in self._job(job).rollback.ledger]

    def latest_sample(self, job: str) -> Json | None:
        with self._reading(job) as reader:
            return reader.latest_sample(job)

    def updates(self, job: str) -> list[Json]:
        with self._reading(job) as reader:
            return typical_updates(SampleReader(reader.connection, job))

    def events(self, job: str) -> list[Json]:
        with self._reading(job) as reader:
            return declared(reader.connection, job)

    def steps(self, job: str, attempt: int, step: int, *, before: int, after: int) -> Json:
        with self._reading(job) as reader:
            return steps_around(reader.connection, job, attempt, step, before, after)

    @contextmanager
    def _reading(self, job: str) -> Iterator[HistoryReader]:
        self._job(job)
        try:
            with closing(HistoryReader(self._path)) as reader:
                yield reader
        except (sqlite3.Error, msgspec.MsgspecError) as error:
            raise RunError(f"{self.name}: {error}") from None

    def _job(self, name: str) -> Job:
        if name not in self._jobs:
            known = ", ".join(sorted(self._jobs)[:MAX_NAMES]) or "none"
            raise RunError(f"{self.name}: no job {name!r}; known: {known}")
        return self._jobs[name]
