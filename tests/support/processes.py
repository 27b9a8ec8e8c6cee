"""Real processes for tests: a daemon on free loopback ports, and jobs under torchrun, each ended with a deadline."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from support.http import http

READY_SECONDS = 20.0
PATIENCE = 3.0
"""Waits end as soon as what they wait for is there, so patience costs a healthy run nothing."""
TESTS = Path(__file__).parents[1]


@dataclass
class DaemonProcess:
    """A running `caboose daemon`."""

    process: subprocess.Popen[str]
    endpoint: str
    url: str
    data_dir: Path
    log: Path

    def get(self, path: str, **params: Any) -> Any:
        """The JSON answer of an API path."""
        response = http.get(self.url.rstrip("/") + path, params=params, timeout=10)
        response.raise_for_status()
        return response.json()

    def step(self, job: str) -> int:
        """The last step of a job that was judged; -1 while the job is not known."""
        steps = {row["job"]: int(row["step"]) for row in self.get("/api/v1/jobs")["jobs"]}
        return steps.get(job, -1)

    def post(self, path: str, body: Any) -> tuple[int, Any]:
        """The status and the JSON answer of a write, with the token."""
        headers = {"authorization": f"Bearer {self.token}"}
        response = http.post(self.url.rstrip("/") + path, json=body, headers=headers, timeout=10)
        return response.status_code, response.json()

    def text(self, path: str) -> str:
        """The answer as text."""
        return http.get(self.url.rstrip("/") + path, timeout=10).text

    @property
    def token(self) -> str:
        """What HTTP writes need."""
        return (self.data_dir / "token").read_text().strip()

    def kill(self) -> None:
        """SIGKILL, as a machine's out-of-memory killer would."""
        self.process.kill()
        self.process.wait(10)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Asks it to end and returns its exit code."""
        self.process.send_signal(number)
        return self.process.wait(10)


def clean_environment(**extra: str) -> dict[str, str]:
    """This environment without what would change an agent's or a daemon's mind."""
    prefixes = ("CABOOSE_", "SLURM_", "TORCHELASTIC_")
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(prefixes) and k not in names}
    path = os.pathsep.join(filter(None, (str(TESTS), kept.get("PYTHONPATH", ""))))  # jobs of support/ import from it
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "PYTHONPATH": path, "CABOOSE_QUIET": "1", **extra}


def caboose_command(*arguments: str) -> list[str]:
    """The command line as a user of this interpreter's environment has it."""
    return [sys.executable, "-m", "caboose_daemon", *arguments]


@contextlib.contextmanager
def running_daemon(
    directory: Path,
    *arguments: str,
    listen: str = "tcp://127.0.0.1:0",
    http: str = "127.0.0.1:0",
    env: Mapping[str, str] | None = None,
    command: Sequence[str] | None = None,
) -> Iterator[DaemonProcess]:
    """A daemon process that is ready when the block begins and gone when it ends; `command` is what starts it."""
    directory.mkdir(parents=True, exist_ok=True)
    ready = directory / "ready.json"
    ready.unlink(missing_ok=True)
    log = directory / "daemon.log"
    command = [*(command or caboose_command()), "daemon", "--listen", listen, "--http", http]
    command += ["--data-dir", str(directory / "data"), "--ready-file", str(ready), *arguments]
    with log.open("a") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, text=True, env=clean_environment(**(env or {})), cwd=directory
        )
    try:
        wait_until(lambda: ready.exists() or process.poll() is not None, READY_SECONDS)
        if not ready.exists():
            raise AssertionError(f"the daemon did not start:\n{log.read_text()}")
        addresses = json.loads(ready.read_text())
        yield DaemonProcess(process, addresses["endpoint"], addresses["url"], directory / "data", log)
    finally:
        end(process)


def wait_until(condition: Any, timeout: float, *, every: float = 0.02) -> Any:
    """Waits for a condition to hold and returns its value; the last value if it never does.

    An HTTP error in it, such as that of a job which is not known yet, counts as not holding, until the deadline.
    The time-out is what a quiet machine needs; a busy one gets `PATIENCE` times as long.
    """
    deadline = time.monotonic() + PATIENCE * timeout
    while True:
        is_last = time.monotonic() >= deadline
        try:
            value = condition()
        except httpx.HTTPStatusError:
            if is_last:
                raise
            value = None
        if value or is_last:
            return value
        time.sleep(every)
        every = min(2 * every, 0.1)  # a condition that takes longer is asked less often


def end(process: "subprocess.Popen[Any]", patience: float = 5.0) -> None:
    """Ends a process this test started: asked first, then killed."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(patience)


def torchrun(script: Path | str, *arguments: str, ranks: int = 2) -> list[str]:
    """A command that runs a script on gloo ranks; the rendezvous takes a free port."""
    target = ["-m", script] if isinstance(script, str) else [str(script)]
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        str(ranks),
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        "127.0.0.1:0",
        *target,
        *arguments,
    ]
