"""A whole daemon without sockets and threads, that does what an example says, and what must hold after each example.

Design
------
`World` has a real `Daemon`: its loop, journal, HTTP application and wiring. Three things are replaced: the clock, which
is counted; the socket, whose two ends are `receive` of its connections and `_reply` of the loop; and the wait of an
HTTP write for the loop's thread, which is this one.

A daemon takes 30 ms to make, so it serves many examples. Each has jobs and peers of its own names, which the daemon
forgets afterwards, as it forgets jobs beyond its limit. An example that fails is played again in a daemon of its own
(`corpus.play`).

An example is a list of operations, each a list that JSON can write: the name of a method here, and its arguments.
"""

import asyncio
import contextlib
import json
import os
import shutil
import tempfile
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import zmq
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_classic

from caboose_daemon.app import app
from caboose_daemon.app.app import Daemon
from caboose_daemon.app.report_connections import Received
from caboose_daemon.config import Config, DaemonConfig, JournalConfig
from caboose_daemon.jobs.job import Job
from caboose_daemon.out.web import stream
from caboose_daemon.out.web.application import make_application
from caboose_daemon.out.web.stream import Stream
from caboose_daemon.rollback_state.settings import RollbackConfig
from caboose_wire import decode
from support.fuzzing import hostile
from support.fuzzing.client import Client
from support.fuzzing.errors import LoggedErrors, Wrong
from support.fuzzing.hostile import NUM_RANKS, Arrays, Fields, frames_of, frames_of_run, frames_of_several
from support.witness import kept

Operation = list[Any]
TOKEN = "a token for the writes of examples"
STEP_SECONDS = 0.5
JOBS = ("train", "other")
OPENMETRICS = "application/openmetrics-text; version=1.0.0"
MAX_EXAMPLES = 400
"""Examples of one daemon; then the next one is begun, in a fresh journal."""


class World:
    """A daemon, and the example that is played to it."""

    def __init__(self, directory: Path | None = None) -> None:
        memory = Path("/dev/shm")
        base = directory or (memory if memory.is_dir() and os.access(memory, os.W_OK) else None)
        self._directory = Path(tempfile.mkdtemp(prefix="caboose-fuzz-", dir=base))
        self._secret = self._directory / "secret"
        self._secret.write_text("a secret that nobody else has")
        self._secret.chmod(0o600)
        self._http = asyncio.new_event_loop()
        self._errors = LoggedErrors()
        self._arrived: deque[list[bytes]] = deque()
        self._number = 0
        self.now = 1_700_000_000.0
        self.num_examples = 0
        self.operations: list[Operation] = []
        """What was done so far in this example."""
        self._num_starts = 0
        self._open()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # The daemon

    @property
    def _data(self) -> Path:
        return self._directory / str(self._num_starts)

    def _open(self) -> None:
        addresses = DaemonConfig(listen="tcp://127.0.0.1:0", http="127.0.0.1:0", data_dir=str(self._data))
        rollback = RollbackConfig(mode="auto", secret_file=str(self._secret))
        with _clock(lambda: self.now):
            self.daemon = Daemon(Config(daemon=addresses, rollback=rollback, journal=JournalConfig(strict=True)))
        loop, context = self.daemon._loop, self.daemon._context
        loop._connections.receive = self._receive  # type: ignore[method-assign]
        loop._reply = self._reply  # type: ignore[method-assign]
        context.writes.wake = loop._perform_writes
        self._client = Client(
            make_application(context, token=TOKEN, host="127.0.0.1", allowed_hosts=()), TOKEN, self._http
        )
        self._board = Stream(context)._board
        self._version: int | None = None
        context.broker.bind(self._http)
        self._listener = context.broker.join(None)

    def _receive(self) -> Received:
        if not self._arrived:
            raise zmq.Again
        peer, *frames = self._arrived.popleft()
        return Received(peer, frames, zmq.Frame(b""))

    def _reply(self, peer: bytes, frames: list[bytes]) -> bool:
        decode(frames)
        return bool(peer)

    def close(self) -> None:
        """Ends the daemon, as a kill would, and removes its files."""
        self._kill()
        self._errors.close()
        self._http.run_until_complete(self._http.shutdown_default_executor())
        self._http.close()
        shutil.rmtree(self._directory)

    def _kill(self) -> None:
        daemon = self.daemon
        daemon._loop.stop()
        daemon._history.close()
        daemon._journal.retention.stop()
        daemon._journal.database.close()
        with contextlib.suppress(OSError):
            os.close(daemon._lock)

    # An example

    def begin(self) -> None:
        """Begins an example; its jobs have names of their own."""
        self._number += 1
        self.num_examples += 1
        self.operations = []
        self.now += 10.0

    def do(self, operation: Operation) -> None:
        """Does one operation and checks what must hold; Wrong, or any other exception, where it does not."""
        self.operations.append(operation)
        name, *arguments = operation
        assert name in OPERATIONS, operation
        getattr(self, name)(*arguments)
        self.check()

    def end(self) -> int:
        """Ends the example; the number of steps that were closed in it."""
        self.turn(0.1)
        self.check()
        jobs = [job for name in JOBS if (job := self.job(name)) is not None]
        num_steps = sum(job.num_steps for job in jobs)
        state = self.daemon.state
        with state.lock:
            for job in jobs:
                del state.jobs[job.name]
                self.daemon._loop._receiver._rolled_back.pop(job.name, None)
            self.daemon._loop._receiver.forget([self._peer(rank) for rank in range(NUM_RANKS + 1)], self.now)
        with self.daemon._journal.database.transaction() as connection:  # a restart restores all that it finds
            connection.executemany("DELETE FROM jobs WHERE name = ?", [(job.name,) for job in jobs])
        return num_steps

    def check(self) -> None:
        """Nothing failed inside, and nothing was refused or lost by the journal."""
        state = self.daemon.state
        self._errors.check()
        counted = {
            "errors": dict(state.num_errors),
            "refused as internal": state.num_refused["internal"],
            "rules": {name: stats.failures for name, stats in state.rule_stats.items() if stats.failures},
            "journal": state.journal_error or state.journal_damage or state.journal_set_aside,
            "rows": (state.journal_refused, state.journal_lost, state.journal_quarantined),
            "quarantine": [job.faults.reason for job in state.jobs.values() if job.faults.num_failures],
        }
        wrong = {name: found for name, found in counted.items() if found and found != (0, 0, 0)}
        if wrong:
            raise Wrong(str(wrong))

    def name(self, job: str = JOBS[0]) -> str:
        return f"{job}-{self._number}"

    def job(self, name: str = JOBS[0]) -> Job | None:
        return self.daemon.state.jobs.get(self.name(name))

    def _peer(self, rank: int) -> bytes:
        return f"{self._number}/{rank}".encode()

    # Operations: messages

    def hello(self, rank: int, changes: Fields) -> None:
        """A rank introduces itself."""
        fields = {name: values[0] for name, values in hostile.HELLO.items()}
        own = {"rank": rank, "host": f"node{rank}", "incarnation": f"incarnation-{rank}"}
        job = self.name(changes.get("job", JOBS[0]))
        self._say(rank, frames_of("Hello", {**fields, **own, **changes, "job": job}))

    def report(self, rank: int, step: int, changes: Fields, arrays: Arrays) -> None:
        """A rank reports a step."""
        self._say(rank, frames_of("StepReport", self._header(step, changes), arrays))

    def reports(self, rank: int, parts: list[tuple[int, Fields, Arrays]]) -> None:
        """A rank reports several steps in one message."""
        self._say(rank, frames_of_several([(self._header(step, changes), arrays) for step, changes, arrays in parts]))

    def run(self, rank: int, step: int, changes: Fields, steps: list[Any]) -> None:
        """A rank reports a run of thin steps."""
        self._say(rank, frames_of_run(self._header(step, changes), steps))

    def _header(self, step: int, changes: Fields) -> Fields:
        job = self.job()
        attempt = job.attempt.agent_attempt if job is not None and job.attempt is not None else 0
        own = {"attempt": attempt, "seq": step, "step": step, "model_step": step, "time": self.now}
        usual = {"loss": 2.0, "lr": [1e-3], "phases": hostile.PHASES[0]}
        return {**own, **usual, **changes}

    def event(self, rank: int, kind: str, fields: Fields) -> None:
        """A rank declares an event."""
        header = {"attempt": 0, "step": self.latest, "time": self.now, "kind": kind, "fields": fields}
        self._say(rank, frames_of("Event", header))

    def message(self, rank: int, kind: str, fields: Fields) -> None:
        """A rank sends another message."""
        fields = {**fields, "job": self.name()} if kind == "PlanRequest" else fields
        self._say(rank, frames_of(kind, fields))

    def raw(self, rank: int, frames: list[str]) -> None:
        """A rank sends bytes."""
        self._say(rank, [bytes.fromhex(frame) for frame in frames])

    def healthy(self, num: int) -> None:
        """All ranks report steps in which nothing is wrong."""
        self.steps(num, {}, [])

    def steps(self, num: int, changes: Fields, arrays: Arrays) -> None:
        """All ranks report so many steps, alike, with these changes."""
        known = {name for name, *_ in arrays}
        usual: Arrays = [["grad_norm", None, [0.1, 0.2, 0.3]]] if "grad_norm" not in known else []
        for step in range(self.latest + 1, self.latest + 1 + num):
            loss = 2.0 + 0.02 * (step * 7919 % 11 - 5)
            for rank in range(NUM_RANKS):
                self.report(rank, step, {"loss": loss, **changes}, [*usual, *arrays])
            self.turn(STEP_SECONDS)

    @property
    def latest(self) -> int:
        """The last step that was closed."""
        job = self.job()
        return job.recent[-1].step if job is not None and job.recent else 0

    def _say(self, rank: int, frames: list[bytes]) -> None:
        self._arrived.append([self._peer(rank), *frames])
        loop = self.daemon._loop
        with loop._holding():
            loop._take(self.now)

    def turn(self, seconds: float) -> None:
        """Time passes, and the loop makes a turn; what it posts is what a stream can send."""
        self.now += seconds
        self.daemon._loop._ring()
        self.daemon._loop._turn()
        self._deliver()

    def _deliver(self) -> None:
        self._http.run_until_complete(_nothing())
        queue = self._listener.queue
        while not queue.empty():
            item = queue.get_nowait()
            assert item is not None
            _parse_json(stream._message(*item).partition("data: ")[2])

    # Operations: readers and writers over HTTP

    def scrape(self, accept: str = "") -> None:
        """Prometheus scrapes, and can read the answer."""
        body = self._client.request("GET", "/metrics", headers={"accept": accept})
        text = body.decode()
        families = list((parse_openmetrics if accept else parse_classic)(text))
        if not families:
            raise Wrong("the scrape is empty")
        names = [(sample.name, tuple(sorted(sample.labels.items()))) for f in families for sample in f.samples]
        if len(names) != len(set(names)):
            raise Wrong("a series is there twice")

    def get(self, path: str) -> None:
        """A page asks for something."""
        body = self._client.request("GET", path.replace("{job}", self.name()))
        if path.startswith("/api"):
            _parse_json(body.decode())

    def post(self, path: str, body: Any) -> None:
        """Somebody writes."""
        content = body if isinstance(body, str) else json.dumps(body)
        _parse_json(self._client.request("POST", f"/api/v1/jobs/{self.name()}/{path}", content).decode())

    def status(self) -> None:
        """The stream's status, for all jobs and for this one."""
        for job in (None, self.name()):
            _, text = self._board.message(job, None)
            _parse_json(text)

    # Operations: the journal

    def restart(self) -> None:
        """The daemon is killed and started again: its jobs are what they were."""
        self.turn(0.0)
        before = {name: _facts(job) for name, job in self.daemon.state.jobs.items() if job.attempt is not None}
        data = self._data
        self._num_starts += 1
        self._data.mkdir(mode=0o700)
        for name in ("journal.sqlite", "journal.sqlite-wal", "journal.state"):
            with contextlib.suppress(FileNotFoundError):
                shutil.copy(data / name, self._data / name)
        self._kill()
        shutil.rmtree(data)
        self._open()
        self.check()
        after = {name: _facts(job) for name, job in self.daemon.state.jobs.items()}
        for name, facts in before.items():
            if after.get(name) != facts:
                raise Wrong(f"{name} after the restart: {_difference(facts, after.get(name, {}))}")

    def sweep(self) -> None:
        """The retention does what is due."""
        self.daemon._journal.retention.advance(self.now)


OPERATIONS = (
    *("hello", "report", "reports", "run", "event", "message", "raw", "healthy", "steps", "turn"),
    *("scrape", "get", "post", "status", "restart", "sweep"),
)


def _facts(job: Job) -> dict[Any, Any]:
    """What a restart must not change."""
    counts = {
        "num_steps": job.num_steps,
        "num_non_finite": job.num_non_finite,
        "num_attempts": job.num_attempts,
        "findings": dict(job.finding_counts),
        "incidents": dict(job.incident_counts),
        "created": job.created,
        "open": [incident.number for incident in job.incidents.open],
    }
    return {**counts, **kept(job)}


def _difference(before: dict[Any, Any], after: dict[Any, Any]) -> list[tuple[Any, Any, Any]]:
    keys = sorted({*before, *after}, key=str)
    return [(key, before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)][:3]


def _parse_json(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise Wrong(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


async def _nothing() -> None:
    """Lets callbacks of other threads run."""
    await asyncio.sleep(0)


@contextlib.contextmanager
def _clock(clock: Any) -> Iterator[None]:
    """The clock of daemons that are made in the block."""
    real = app.SteadyClock
    app.SteadyClock = lambda: clock  # type: ignore[misc, assignment]
    try:
        yield
    finally:
        app.SteadyClock = real  # type: ignore[misc]
