"""Starts, shows and ends a stack: processes that outlive the command, listed in a file in the stack's directory.

Design
------
`stack.json` names every process by its pid and its start time, so that `down` never ends a later process with the same
pid. It also has each part's port and the settings, so that a part that died is started again in its place: jobs go on
reporting to the same address. Ports are the usual ones where they are free, else free ones, found by binding to port 0
and closing again. Another process may take a port in between; then the program reports it and `up` fails with that
message. If `up` fails, it ends what it started.
"""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from caboose_daemon.ops.processes import ProcessError, start, start_daemon, tail
from caboose_daemon.ops.stack import configs, ports
from caboose_daemon.ops.stack.programs import PROGRAMS, find_program
from caboose_daemon.out.api import known_daemons
from caboose_daemon.out.api.client import Client, ClientError
from caboose_daemon.out.api.known_daemons import KnownDaemon, start_time

READY_SECONDS = 30.0
READY_TIMEOUT_SECONDS = 2.0
"""Of one request."""
PATIENCE_SECONDS = 8.0
ORDER = ("daemon", "alertmanager", "prometheus")
"""In which the parts are started and shown."""
_children: dict[int, "subprocess.Popen[bytes]"] = {}
"""The processes that this process started: they must be reaped if they end before it."""


class StackError(RuntimeError):
    """The stack cannot be started, read or ended; the message gives the reason and the way out."""


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
    ports: dict[str, int] = field(default_factory=dict)
    """Of Prometheus and Alertmanager."""
    settings: "Settings | None" = None
    """None in a file of an earlier version."""

    @property
    def known(self) -> KnownDaemon | None:
        """Its own daemon, as other commands may know it."""
        found = next((part for part in self.parts if part.name == "daemon"), None)
        if found is None:
            return None
        token = self.directory / "data" / "token"
        return KnownDaemon(self.daemon_url, str(token), self.endpoint, found.pid, found.started)

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
            "ports": self.ports,
            "settings": None if self.settings is None else asdict(self.settings),
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
        stack.ports, settings = body.get("ports", {}), body.get("settings")
        stack.settings = None if settings is None else Settings(**{**settings, "rules": tuple(settings["rules"])})
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StackError(f"{stack.file} cannot be read: {error}; end its processes and remove the file") from None
    return stack


@dataclass(frozen=True)
class Settings:
    """How a stack is set up; kept with it, so that its parts can be started again."""

    daemon: str | None
    """The address of a daemon that runs already; None if the stack has one of its own."""
    rules: tuple[str, ...]
    webhook: str | None = None
    scrape_seconds: float = configs.SCRAPE_SECONDS
    wait_seconds: float = 10.0
    usual_ports: bool = False


def up(
    directory: Path,
    *,
    daemon: str | None,
    rules: Sequence[Path],
    webhook: str | None = None,
    scrape_seconds: float = configs.SCRAPE_SECONDS,
    wait_seconds: float = 10.0,
    usual_ports: bool = False,
) -> Stack:
    """Starts Prometheus and Alertmanager; without a `daemon` address, a daemon too. Of a stack, what is dead."""
    known = load(directory)
    if known is not None and (known.settings is not None or any(part.is_running for part in known.parts)):
        if known.settings is None or all(part.is_running for part in known.parts):
            raise StackError(
                f"a stack already runs in {directory}; `caboose stack status` shows it, `caboose stack down` ends it"
            )
        return _revive(known, known.settings)
    texts = tuple(str(path) for path in rules)
    settings = Settings(daemon, texts, webhook, scrape_seconds, wait_seconds, usual_ports)
    programs = _programs()
    if daemon is not None:
        _check_daemon(daemon)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--dir {directory} cannot be created: {error.strerror}") from None
    stack = Stack(directory, settings=settings)
    try:
        if daemon is None:
            _start_daemon(
                stack,
                f"tcp://127.0.0.1:{ports.choose('reports', is_usual=usual_ports)}",
                f"127.0.0.1:{ports.choose('daemon', is_usual=usual_ports)}",
            )
        else:
            stack.daemon_url = Client(daemon).url
        stack.ports = {name: ports.choose(name, is_usual=usual_ports) for name in programs}
        _write_configs(stack, settings)
        for name in ("alertmanager", "prometheus"):
            _start_program(stack, name, programs[name])
        stack.save()
    except BaseException as error:
        for part in reversed(stack.parts):
            _end(part)
        if isinstance(error, ProcessError | OSError):
            raise StackError(str(error)) from None
        raise
    _note(stack)
    return stack


def _revive(stack: Stack, settings: Settings) -> Stack:
    """Starts the parts of a stack that are dead, each where it was."""
    programs = _programs()
    dead = [part for part in stack.parts if not part.is_running]
    stack.parts = [part for part in stack.parts if part not in dead]
    if settings.daemon is not None:
        _check_daemon(settings.daemon)
    begun: list[Service] = []
    try:
        for part in dead:
            if part.name == "daemon":
                _start_daemon(stack, stack.endpoint, urlsplit(stack.daemon_url).netloc)
            else:
                _start_program(stack, part.name, programs[part.name])
            begun.append(stack.parts[-1])
    except BaseException as error:
        for part in begun:
            _end(part)
        if isinstance(error, ProcessError | OSError):
            raise StackError(f"{error}\n`caboose stack down` ends what runs; `up` then starts all anew") from None
        raise
    stack.parts.sort(key=lambda part: ORDER.index(part.name))
    stack.save()
    _note(stack)
    return stack


def _programs() -> dict[str, str]:
    return {name: find_program(name) for name in PROGRAMS}


def _check_daemon(address: str) -> None:
    try:
        Client(address).get("/healthz")
    except ClientError as error:
        raise StackError(f"{error}; or pass --with-daemon") from None


def _start_daemon(stack: Stack, endpoint: str, http: str) -> None:
    (stack.directory / "ready.json").unlink(missing_ok=True)
    process, stack.endpoint, stack.daemon_url = start_daemon(stack.directory, "--listen", endpoint, "--http", http)
    stack.parts.append(_part("daemon", process, stack.daemon_url, stack.directory / "daemon.log"))


def _write_configs(stack: Stack, settings: Settings) -> None:
    text = configs.alertmanager(settings.webhook, wait_seconds=settings.wait_seconds)
    (stack.directory / "alertmanager.yml").write_text(text)
    text = configs.prometheus(
        stack.daemon_url,
        f"127.0.0.1:{stack.ports['alertmanager']}",
        [Path(path) for path in settings.rules],
        seconds=settings.scrape_seconds,
    )
    (stack.directory / "prometheus.yml").write_text(text)


def _start_program(stack: Stack, name: str, program: str) -> None:
    """Starts Prometheus or Alertmanager at its port."""
    address = f"127.0.0.1:{stack.ports[name]}"
    options = {
        "alertmanager": ["--storage.path=alertmanager-data", "--cluster.listen-address="],
        "prometheus": ["--storage.tsdb.path=prometheus-data", "--storage.tsdb.retention.time=15d"],
    }[name]
    command = [program, f"--config.file={name}.yml", f"--web.listen-address={address}", *options]
    _launch(stack, name, command, f"http://{address}")


def _note(stack: Stack) -> None:
    """Lets the other commands find the stack's daemon and its token."""
    if stack.known is not None:
        known_daemons.note(stack.known, known_daemons.STACK)


def down(directory: Path) -> list[str]:
    """Ends the processes; returns the names of those that were running. Keeps all files but stack.json."""
    stack = load(directory)
    if stack is None:
        raise StackError(f"no stack was started in {directory}")
    running = [part.name for part in stack.parts if part.is_running]
    if stack.known is not None:
        known_daemons.forget(stack.known, known_daemons.STACK)
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
