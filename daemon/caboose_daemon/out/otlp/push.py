"""Pushes to one endpoint, on threads of its own: nothing here makes the loop wait.

Design
------
An outbox (see `out.outbox`) takes what changed on the loop's thread and delivers it on its own: it is bounded, drops
its oldest item, and counts. A second thread puts a tick into it at every interval, unless the last one still waits: an
endpoint that hangs gets one push late, not many. Logs and spans that the endpoint refused are kept for the next tick,
up to a limit; metrics are not: the next push has newer values.
"""

import contextlib
import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from caboose_daemon.config import Config
from caboose_daemon.incidents.incident import Incident
from caboose_daemon.jobs.job import Job
from caboose_daemon.jobs.state import ExportCounts, State
from caboose_daemon.out.links import Links
from caboose_daemon.out.metrics.collector import StateCollector
from caboose_daemon.out.otlp.attempt_spans import Attempts, EndedAttempt, RunningAttempt, running, span
from caboose_daemon.out.otlp.exporters import Exporters, OtlpError, make_exporters
from caboose_daemon.out.otlp.incident_logs import IncidentLogs
from caboose_daemon.out.otlp.metric_data import metrics_data
from caboose_daemon.out.outbox import CLOSE_SECONDS, ExportOutbox
from caboose_daemon.version import __version__

NAME = "otlp"
MAX_KEPT = 1000
"""Log records, and spans, that wait while the endpoint does not take them."""


@dataclass(frozen=True)
class Tick:
    """It is time to push metrics."""


@dataclass(frozen=True)
class ChangedIncident:
    """An incident, when it changed, and when its job was first seen."""

    incident: Incident
    time: float
    created: float


Item = Tick | ChangedIncident | RunningAttempt


class OtlpTarget:
    """Turns items into requests; every method runs on the outbox's thread."""

    name = NAME

    def __init__(self, state: State, collector: StateCollector, exporters: Exporters, clock: Callable[[], float]):
        self._state = state
        self._collector = collector
        self._exporters = exporters
        self._clock = clock
        self._scope = InstrumentationScope("caboose", __version__)
        self._incidents = IncidentLogs()
        self._attempts = Attempts()
        self._records: deque[ReadableLogRecord] = deque(maxlen=MAX_KEPT)
        self._spans: deque[ReadableSpan] = deque(maxlen=MAX_KEPT)
        self._made_resource: Resource | None = None
        self._failed: dict[str, str] = {}
        """Signals that the endpoint did not take since the last tick, and why."""
        self.is_tick_waiting = False

    @property
    def _resource(self) -> Resource:
        """Who sends; made with the first item, when the address is known."""
        if self._made_resource is None:
            instance = self._state.url or f"{socket.gethostname()}:{os.getpid()}"
            about = {"service.name": "caboose", "service.version": __version__, "service.instance.id": instance}
            self._made_resource = Resource.create({**about, "host.name": socket.gethostname()})
        return self._made_resource

    def take(self, item: Item) -> None:
        """Sends what is new. While the endpoint fails, only a tick tries again: each try may take a time-out."""
        if isinstance(item, ChangedIncident):
            self._take_incident(item)
        elif isinstance(item, RunningAttempt):
            self._add_span(self._attempts.began(item))
        is_tick = isinstance(item, Tick)
        if is_tick:
            self.is_tick_waiting = False
            self._failed.clear()
        if not self._failed:
            self._send(is_tick=is_tick)
        for problem in self._failed.values():
            raise OtlpError(problem)

    def _take_incident(self, item: ChangedIncident) -> None:
        record = self._incidents.record(item.incident, item.time, item.created, Links.of(self._state))
        if record is not None:
            self._records.append(ReadableLogRecord(record, self._resource, self._scope))

    def _add_span(self, over: EndedAttempt | None) -> None:
        if over is not None:
            self._spans.append(span(over, self._resource, self._scope))

    def _send(self, *, is_tick: bool) -> None:
        """Log records and spans that were not taken stay for the next tick."""
        if is_tick:
            self._try("metrics", self._push)
        if self._records and self._try("logs", lambda: self._exporters.send_logs(list(self._records))):
            self._records.clear()
        if self._spans and self._try("traces", lambda: self._exporters.send_spans(list(self._spans))):
            self._spans.clear()

    def _try(self, signal: str, send: Callable[[], None]) -> bool:
        try:
            send()
        except Exception as error:  # noqa: BLE001 - a library and a server of others; the other signals go on
            self._failed[signal] = str(error) or type(error).__name__
            return False
        return True

    def _push(self) -> None:
        """Metrics, and the ends of attempts."""
        jobs = list(self._state.copies())
        for over in self._attempts.look(jobs):
            self._add_span(over)
        if self._exporters.metrics is not None:
            data = metrics_data(
                self._collector.collect(),
                self._resource,
                self._scope,
                now=self._clock(),
                started=self._state.started,
                created={job.name: job.created for job in jobs},
            )
            self._exporters.send_metrics(data)

    def flush(self) -> None:
        """Nothing is buffered."""

    def close(self) -> None:
        self._exporters.close()


class Otlp:
    """What the daemon pushes over OTLP."""

    def __init__(self, config: Config, state: State, clock: Callable[[], float]) -> None:
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # the outbox logs when failures begin and end
        collector = StateCollector(state, clock, config.metrics.incident_seconds, config.rollback)
        self._target = OtlpTarget(state, collector, make_exporters(config.otlp), clock)
        self._outbox: ExportOutbox[Item] = ExportOutbox(self._target, state.exports.setdefault(NAME, ExportCounts()))
        self._interval = config.otlp.interval_seconds
        self._clock = clock
        self._ending = threading.Event()
        self._ticker = threading.Thread(target=self._tick, name="caboose-otlp-tick", daemon=True)

    def start(self) -> None:
        self._outbox.start()
        self._ticker.start()

    def _tick(self) -> None:
        while not self._ending.wait(self._interval):
            self._put_tick()

    def _put_tick(self) -> None:
        if not self._target.is_tick_waiting:
            self._target.is_tick_waiting = True
            self._outbox.put(Tick())

    def incident_changed(self, job: Job, incident: Incident) -> None:
        """Called on the loop's thread, with the state's lock held."""
        self._outbox.put(ChangedIncident(incident, self._clock(), job.created))

    def attempt_began(self, job: Job) -> None:
        """Called as `incident_changed` is."""
        attempt = running(job)
        if attempt is not None:
            self._outbox.put(attempt)

    def close(self, patience: float = CLOSE_SECONDS) -> None:
        """Pushes a last time, within `patience` seconds."""
        self._ending.set()
        began = time.monotonic()
        if self._ticker.ident is not None:
            self._put_tick()
            self._ticker.join(timeout=patience)
        with contextlib.suppress(RuntimeError):
            self._outbox.close(max(0.0, patience - (time.monotonic() - began)))
