"""The parts of a running daemon that the HTTP server uses."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from caboose_daemon.jobs.job import Job
from caboose_daemon.jobs.pipeline import Pipeline
from caboose_daemon.jobs.state import State
from caboose_daemon.jobs.thresholds import Thresholds
from caboose_daemon.out.api.declared import declared
from caboose_daemon.out.api.live import Broker
from caboose_daemon.out.api.steps_around import steps_around
from caboose_daemon.out.web.replies import error, unknown_job
from caboose_daemon.out.web.writes import Prepare, Prepared, Writes
from caboose_daemon.rollback.requests import Requests
from caboose_daemon.rollback_state.settings import RollbackConfig
from caboose_daemon.store.history import HistoryReader
from caboose_daemon.store.sample_history import SampleReader


@dataclass
class Context:
    """Passed to every endpoint."""

    state: State
    pipeline: Pipeline
    thresholds: Thresholds
    broker: Broker
    history: HistoryReader
    clock: Callable[[], float]
    is_receiving: Callable[[], bool]
    requests: Requests
    rollback: RollbackConfig
    is_signed: bool = False
    """Whether commands are signed."""
    writes: Writes = field(default_factory=Writes)
    incident_seconds: float = 120.0
    """Minimum time an incident is exported."""
    _history_lock: threading.Lock = field(default_factory=threading.Lock)

    def curves(
        self, job: str, points: int, first: int | None, last: int | None
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """A job's curves, or a window of them, and those of its named numbers; one reader at a time."""
        with self._history_lock:
            return self.history.curves(job, points, first, last)

    def latest_sample(self, job: str) -> dict[str, Any] | None:
        """The last sample of a job's layers."""
        with self._history_lock:
            return self.history.latest_sample(job)

    def samples(self, job: str, question: Callable[[SampleReader], dict[str, Any]]) -> dict[str, Any]:
        """The result of `question`, called with a reader of the job's samples."""
        with self._history_lock:
            return question(SampleReader(self.history.connection, job))

    def steps(self, job: str, attempt: int, step: int, before: int, after: int) -> dict[str, Any]:
        """A job's steps around a step."""
        with self._history_lock:
            return steps_around(self.history.connection, job, attempt, step, before, after)

    def declared(self, job: str) -> list[dict[str, Any]]:
        """A job's declared events, except validations."""
        with self._history_lock:
            return declared(self.history.connection, job)

    async def write(self, prepare: Prepare) -> Response:
        """The answer to a write, after it was committed; see `writes`."""
        if not self.is_receiving():
            return error(503, "the receiving loop has stopped; nothing was changed")
        return await self.writes.ask(prepare)

    async def write_job(self, request: Request, prepare: Callable[[Job], Prepared]) -> Response:
        """The same for the job in the path; 404 for an unknown job."""
        name = request.path_params["job"]

        def of_job() -> Prepared:
            unknown = unknown_job(self.state, name)
            return prepare(self.state.jobs[name]) if unknown is None else Prepared(unknown)

        return await self.write(of_job)

    def problems(self) -> list[str]:
        """Problems that make the daemon not ready."""
        problems = []
        if not self.is_receiving():
            problems.append("the receiving loop has stopped")
        if self.state.journal_error:
            problems.append(f"the journal cannot be written: {self.state.journal_error}")
        if self.state.journal_damage:
            problems.append(f"the journal is damaged: {self.state.journal_damage}; restart: it is then kept aside")
        return problems
