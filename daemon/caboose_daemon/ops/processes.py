"""Processes of demo, drills and stack: started in their own session, ended with all their children."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from caboose_daemon.out.api.known_daemons import start_time

READY_SECONDS = 30.0


class ProcessError(RuntimeError):
    """A process did not start, or failed; the message gives the reason."""


def start_daemon(directory: Path, *options: str) -> tuple["subprocess.Popen[bytes]", str, str]:
    """A daemon with default configuration and these options on free loopback ports: process, endpoint, URL."""
    ready = directory / "ready.json"
    command = [sys.executable, "-m", "caboose_daemon", "daemon", "--listen", "tcp://127.0.0.1:0"]
    command += ["--http", "127.0.0.1:0", "--data-dir", str(directory / "data"), "--ready-file", str(ready), *options]
    process = start(command, directory, directory / "daemon.log", {})
    deadline = time.monotonic() + READY_SECONDS
    while not ready.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            end(process)
            raise ProcessError(f"the daemon did not start:\n{tail(directory / 'daemon.log')}")
        time.sleep(0.05)
    addresses = json.loads(ready.read_text(encoding="utf-8"))
    return process, addresses["endpoint"], addresses["url"].rstrip("/")


def start(
    command: list[str], directory: Path, log: Path, extra: dict[str, str], *, stdout: int | None = None
) -> "subprocess.Popen[bytes]":
    """A process with its output in `log`, without variables that configure an agent or daemon."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("CABOOSE_", "TORCHELASTIC_", "SLURM_"))}
    with log.open("wb") as output:
        return subprocess.Popen(  # noqa: S603 - our own command
            command,
            stdin=subprocess.DEVNULL,
            stdout=output if stdout is None else stdout,
            stderr=output,
            cwd=directory,
            env={**inherited, **extra},
            start_new_session=True,  # Ctrl-C reaches the command only, which then ends its processes
        )


def end(process: "subprocess.Popen[bytes]", patience: float = 4.0) -> None:
    """Ends a process and its descendants: SIGTERM, then SIGKILL."""
    family = list(_descendants(process.pid))
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)
    if process.poll() is None:
        process.kill()
        process.wait()
    for pid, started in family:
        if start_time(pid) == started:  # the same process, not a later one with its pid
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _descendants(pid: int) -> Iterator[tuple[int, str]]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = entry.read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(entry.parent.name))
    waiting = list(children.get(pid, ()))
    while waiting:
        child = waiting.pop()
        yield child, start_time(child)
        waiting += children.get(child, ())


def tail(log: Path, lines: int = 15) -> str:
    """The last lines of a log, indented."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "    (no output)"
    return "\n".join(f"    {line}" for line in text.splitlines()[-lines:]) or "    (no output)"
