"""Starts, shows and ends a stack: processes that outlive the command, listed in a file in the stack's directory.

Design
------
`stack.json` names every process by its pid and its start time, so that `down` never ends a later process with the same
pid. Ports are free ones, found by binding to port 0 and closing again. Another process may take the port in between;
then the program reports it and `up` fails with that message. If `up` fails, it ends what it started.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from caboose_daemon.ops.processes import ProcessError, start, start_daemon, start_time, tail
from caboose_daemon.ops.stack import configs
from caboose_daemon.out.api.client import Client, ClientError

READY_SECONDS = 30.0
READY_TIMEOUT_SECONDS = 2.0
"""Of one request."""
PATIENCE_SECONDS = 8.0
PROGRAMS = {
    "prometheus": ("prometheus",),
    "alertmanager": ("alertmanager", "prometheus-alertmanager"),
}
"""The names of each program on the PATH; distributions differ."""
INSTALL = {
    "prometheus": "apt-get install prometheus, or https://prometheus.io/download/",
    "alertmanager": "apt-get install prometheus-alertmanager, or https://prometheus.io/download/",
}
_children: dict[int, "subprocess.Popen[bytes]"] = {}
"""The processes that this process started: they must be reaped if they end before it."""


class StackError(RuntimeError):
    """The stack cannot be started, read or ended; the message gives the reason and the way out."""


class BinaryError(RuntimeError):
    """A program is missing; the message says how to install it."""


def find_program(program: str) -> str:
    """The path of a program; CABOOSE_PROMETHEUS and CABOOSE_ALERTMANAGER override the PATH."""
    variable = f"CABOOSE_{program.upper()}"
    given = os.environ.get(variable)
    for name in (given,) if given else PROGRAMS[program]:
        found = shutil.which(name)
        if found is not None:
            return found
    if given:
        raise BinaryError(f"{variable}={given!r} is not an executable program")
    raise BinaryError(f"{program} is not on the PATH: {INSTALL[program]} (or set {variable} to its path)")


@dataclass(frozen=True)
class Service:
    """One process of the stack."""

    name: str
    pid: int
    started: str
    url: str
    log: str

    @property
    def is_running(self) -> bool:
        """Whether the process still runs, and not another one with its pid."""
        return bool(self.started) and start_time(self.pid) == self.started

    @property
    def is_ready(self) -> bool:
        """Whether its readiness endpoint answers 200."""
        path = "/readyz" if self.name == "daemon" else "/-/ready"
        return self.is_running and Client(self.url, timeout=READY_TIMEOUT_SECONDS).is_ok(path)


@dataclass
class Stack:
    """The processes of one directory."""

    directory: Path
    daemon_url: str = ""
    endpoint: str = ""
    """Where agents report; empty if the stack started no daemon."""
    parts: list[Service] = field(default_factory=list)

    @property
    def file(self) -> Path:
        """The file that lists its processes."""
        return self.directory / "stack.json"

    def part(self, name: str) -> Service:
        return next(part for part in self.parts if part.name == name)

    def save(self) -> None:
        """Writes the file atomically."""
        body = {
            "daemon_url": self.daemon_url,
            "endpoint": self.endpoint,
            "parts": [asdict(part) for part in self.parts],
        }
        aside = self.file.with_suffix(".tmp")
        aside.write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8")
        aside.replace(self.file)


def load(directory: Path) -> Stack | None:
    """The stack of a directory, running or not; None if there is none."""
    stack = Stack(directory)
    try:
        body = json.loads(stack.file.read_text(encoding="utf-8"))
        stack.daemon_url, stack.endpoint = body["daemon_url"], body["endpoint"]
        stack.parts = [Service(**part) for part in body["parts"]]
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StackError(f"{stack.file} cannot be read: {error}; end its processes and remove the file") from None
    return stack


def up(
    directory: Path,
    *,
    daemon: str | None,
    rules: Sequence[Path],
    webhook: str | None = None,
    scrape_seconds: float = configs.SCRAPE_SECONDS,
    wait_seconds: float = 10.0,
) -> Stack:
    """Starts Prometheus and Alertmanager; without a `daemon` address, a daemon too."""
    known = load(directory)
    if known is not None and any(part.is_running for part in known.parts):
        raise StackError(
            f"a stack already runs in {directory}; `caboose stack status` shows it, `caboose stack down` ends it"
        )
    programs = {name: find_program(name) for name in ("prometheus", "alertmanager")}
    if daemon is not None:
        client = Client(daemon)
        try:
            client.get("/healthz")
        except ClientError as error:
            raise StackError(f"{error}; start one (`caboose daemon`), or pass --with-daemon") from None
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--dir {directory} cannot be created: {error.strerror}") from None
    stack = Stack(directory)
    try:
        if daemon is None:
            process, stack.endpoint, stack.daemon_url = start_daemon(directory)
            stack.parts.append(_part("daemon", process, stack.daemon_url, directory / "daemon.log"))
        else:
            stack.daemon_url = client.url
        own, peer = _free_port(), _free_port()
        (directory / "alertmanager.yml").write_text(configs.alertmanager(webhook, wait_seconds=wait_seconds))
        text = configs.prometheus(stack.daemon_url, f"127.0.0.1:{peer}", rules, seconds=scrape_seconds)
        (directory / "prometheus.yml").write_text(text)
        to_alertmanager = ["--config.file=alertmanager.yml", "--storage.path=alertmanager-data"]
        to_alertmanager += [f"--web.listen-address=127.0.0.1:{peer}", "--cluster.listen-address="]
        _launch(stack, "alertmanager", [programs["alertmanager"], *to_alertmanager], f"http://127.0.0.1:{peer}")
        to_prometheus = ["--config.file=prometheus.yml", "--storage.tsdb.path=prometheus-data"]
        to_prometheus += [f"--web.listen-address=127.0.0.1:{own}", "--storage.tsdb.retention.time=15d"]
        _launch(stack, "prometheus", [programs["prometheus"], *to_prometheus], f"http://127.0.0.1:{own}")
        stack.save()
    except BaseException as error:
        for part in reversed(stack.parts):
            _end(part)
        if isinstance(error, ProcessError | OSError):
            raise StackError(str(error)) from None
        raise
    return stack


def down(directory: Path) -> list[str]:
    """Ends the processes; returns the names of those that were running. Keeps all files but stack.json."""
    stack = load(directory)
    if stack is None:
        raise StackError(f"no stack was started in {directory}")
    running = [part.name for part in stack.parts if part.is_running]
    for part in reversed(stack.parts):
        _end(part)
    stack.file.unlink(missing_ok=True)
    return running


def _launch(stack: Stack, name: str, command: list[str], url: str) -> None:
    log = stack.directory / f"{name}.log"
    process = start(command, stack.directory, log, {})
    part = _part(name, process, url, log)
    stack.parts.append(part)
    deadline = time.monotonic() + READY_SECONDS
    while not part.is_ready:
        if process.poll() is not None or time.monotonic() > deadline:
            raise StackError(f"{name} did not start:\n{tail(log, 40)}")
        time.sleep(0.1)


def _part(name: str, process: "subprocess.Popen[bytes]", url: str, log: Path) -> Service:
    _children[process.pid] = process
    return Service(name, process.pid, start_time(process.pid), url, str(log))


def _end(part: Service) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    for number in (signal.SIGTERM, signal.SIGKILL):
        if part.is_running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(part.pid, number)
        child = _children.get(part.pid)
        while part.is_running and time.monotonic() < deadline:
            if child is not None:
                child.poll()  # an ended child exists until it is reaped
            time.sleep(0.05)
    _children.pop(part.pid, None)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
