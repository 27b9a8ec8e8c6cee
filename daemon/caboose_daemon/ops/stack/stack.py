"""Starts, shows and ends a stack: processes that go on after the command, known by a file in the stack's directory.

Design
------
`stack.json` names every process by its number and its start, so that `down` never ends a later process that got the
same number. Ports are free ones, chosen by binding to 0 and letting go, which another process may in theory win; then
the program says so and `up` fails with its words. Whatever `up` started is ended again when it fails.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from caboose_daemon.ops.processes import ProcessError, start, start_daemon, start_time, tail
from caboose_daemon.ops.stack import binaries, configs
from caboose_daemon.out.api.client import Client, ClientError

READY_SECONDS = 30.0
READY_TIMEOUT_SECONDS = 2.0
"""Of one request."""
PATIENCE_SECONDS = 8.0
_children: dict[int, "subprocess.Popen[bytes]"] = {}
"""What this very process started: it goes on when the command ends, and is reaped if it is ended before."""


class StackError(RuntimeError):
    """The stack cannot do as it was told; the message says why and what to do."""


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
        """Whether it is still that process."""
        return bool(self.started) and start_time(self.pid) == self.started

    @property
    def is_ready(self) -> bool:
        """Whether it answers."""
        path = "/readyz" if self.name == "daemon" else "/-/ready"
        return self.is_running and Client(self.url, timeout=READY_TIMEOUT_SECONDS).is_ok(path)


@dataclass
class Stack:
    """What runs in one directory."""

    directory: Path
    daemon_url: str = ""
    endpoint: str = ""
    """Where agents report, where the stack has a daemon of its own."""
    parts: list[Service] = field(default_factory=list)

    @property
    def file(self) -> Path:
        """Where it is written down."""
        return self.directory / "stack.json"

    def part(self, name: str) -> Service:
        """By its name."""
        return next(part for part in self.parts if part.name == name)

    def save(self) -> None:
        """Writes it down, whole or not at all."""
        body = {
            "daemon_url": self.daemon_url,
            "endpoint": self.endpoint,
            "parts": [asdict(part) for part in self.parts],
        }
        aside = self.file.with_suffix(".tmp")
        aside.write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8")
        aside.replace(self.file)


def load(directory: Path) -> Stack | None:
    """The stack that was started in a directory, running or not; None where there is none."""
    stack = Stack(directory)
    try:
        body = json.loads(stack.file.read_text(encoding="utf-8"))
        stack.daemon_url, stack.endpoint = body["daemon_url"], body["endpoint"]
        stack.parts = [Service(**part) for part in body["parts"]]
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StackError(f"{stack.file} cannot be read: {error}; end its processes by hand and remove it") from None
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
    """Starts what is missing; with no `daemon` address, a daemon of its own too."""
    known = load(directory)
    if known is not None and any(part.is_running for part in known.parts):
        raise StackError(f"a stack runs in {directory} already; `caboose stack status` shows it, `down` ends it")
    programs = {name: binaries.find(name) for name in ("prometheus", "alertmanager")}
    if daemon is not None:
        client = Client(daemon)
        try:
            client.get("/healthz")
        except ClientError as error:
            raise StackError(f"{error}; start one (`caboose daemon`), or pass --with-daemon") from None
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--dir {directory} cannot be made: {error.strerror}") from None
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
    """Ends what `up` started; the names of what was still running. Files stay, but for the one that says what runs."""
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
                child.poll()  # our own child must be reaped to be gone
            time.sleep(0.05)
    _children.pop(part.pid, None)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
