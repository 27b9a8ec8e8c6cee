"""Real runs of several ranks under torchrun, guarded by a real daemon that may take them back."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.collector import Collector
from support.http import http
from support.processes import DaemonProcess, clean_environment, end

JOB = "guarded"


@dataclass(frozen=True)
class Finished:
    """A run that is over."""

    returncode: int
    ranks: list[dict[str, Any]]
    """What each rank wrote at its end; empty if it did not come to that."""
    log: str

    @property
    def losses(self) -> list[float]:
        """Rank 0's."""
        losses: list[float] = self.ranks[0]["losses"]
        return losses


def train(
    daemon: DaemonProcess | Collector, directory: Path, *options: str, ranks: int = 2, timeout: float = 150.0
) -> Finished:
    """Runs the demo's job to its end."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
    command += ["-m", "caboose_drills.demo", "--result", str(directory / "result"), *options]
    env = clean_environment(CABOOSE_ENDPOINT=daemon.endpoint, CABOOSE_JOB=JOB, OMP_NUM_THREADS="1")
    log = directory / "job.log"
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=env)
    try:
        process.wait(timeout)
    finally:
        end(process)
    results = [directory / f"result.{rank}" for rank in range(ranks)]
    ended = [json.loads(path.read_text()) for path in results if path.exists()]
    return Finished(process.returncode, ended, log.read_text())


def ask(daemon: DaemonProcess, path: str) -> Any:
    """What the daemon says of the job."""
    return http.get(f"{daemon.url}api/v1/jobs/{JOB}/{path}", timeout=10).json()
