"""The demo's own processes: started in sessions of their own, and all gone afterwards, however it ends."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

READY_SECONDS = 30.0


class DemoError(RuntimeError):
    """The demo cannot go on; the message says why and what to do."""


def start_daemon(directory: Path) -> tuple["subprocess.Popen[bytes]", str, str]:
    """A daemon with the embedded defaults on free loopback ports: process, endpoint, URL."""
    ready = directory / "ready.json"
    command = [sys.executable, "-m", "caboose_daemon", "daemon", "--listen", "tcp://127.0.0.1:0"]
    command += ["--http", "127.0.0.1:0", "--data-dir", str(directory / "data"), "--ready-file", str(ready)]
    process = _start(command, directory, directory / "daemon.log", {})
    deadline = time.monotonic() + READY_SECONDS
    while not ready.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            end(process)
            raise DemoError(f"the daemon did not start:\n{tail(directory / 'daemon.log')}")
        time.sleep(0.05)
    addresses = json.loads(ready.read_text(encoding="utf-8"))
    return process, addresses["endpoint"], addresses["url"].rstrip("/")


def start_job(directory: Path, endpoint: str, *, job: str, steps: int, spike_at: int) -> "subprocess.Popen[bytes]":
    """The two-rank job under torchrun."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
    command += ["-m", "caboose.drills.demo", "--steps", str(steps), "--spike-at", str(spike_at)]
    env = {"CABOOSE_ENDPOINT": endpoint, "CABOOSE_JOB": job, "OMP_NUM_THREADS": "1", "TMPDIR": str(directory)}
    return _start(command, directory, directory / "job.log", env)


def _start(command: list[str], directory: Path, log: Path, extra: dict[str, str]) -> "subprocess.Popen[bytes]":
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("CABOOSE_", "TORCHELASTIC_", "SLURM_"))}
    with log.open("wb") as output:
        return subprocess.Popen(  # noqa: S603 - our own command
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=directory,
            env={**inherited, **extra},
            start_new_session=True,  # Ctrl-C reaches the demo, which ends its processes in order
        )


def end(process: "subprocess.Popen[bytes]", patience: float = 4.0) -> None:
    """Ends a process and all that came from it: asked first, then killed."""
    family = list(_descendants(process.pid))
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)
    if process.poll() is None:
        process.kill()
        process.wait()
    for pid, started in family:
        if _start_time(pid) == started:  # still the same process, not a later one under its number
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
        yield child, _start_time(child)
        waiting += children.get(child, ())


def _start_time(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def tail(log: Path, lines: int = 15) -> str:
    """The last lines of a log, indented for showing."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "    (no output)"
    return "\n".join(f"    {line}" for line in text.splitlines()[-lines:]) or "    (no output)"
