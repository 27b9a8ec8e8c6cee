"""The demo's training run: its process, and what the daemon's API reports of it."""

import contextlib
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from caboose_daemon.format import to_float
from caboose_daemon.offline.runs.run import RunError
from caboose_daemon.offline.runs.source import DaemonSource
from caboose_daemon.ops.processes import start

BAD_STEPS = 8
"""More than one, so that the damage lasts and a rollback is worth it."""
STEP_SECONDS = 0.1
"""The shortest step: slow enough to watch, and a snapshot must be some seconds old to be trusted."""
POINTS = 2000


def start_run(directory: Path, endpoint: str, *, job: str, steps: int, spike_at: int) -> "subprocess.Popen[bytes]":
    """Starts the two-rank run under torchrun; it allows rollback."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
    command += ["-m", "caboose_drills.demo", "--steps", str(steps), "--spike-at", str(spike_at)]
    command += ["--bad-steps", str(BAD_STEPS), "--step-seconds", str(STEP_SECONDS)]
    command += ["--rollback", "auto", "--snapshot-every", "20"]
    env = {"CABOOSE_ENDPOINT": endpoint, "CABOOSE_JOB": job, "OMP_NUM_THREADS": "1", "TMPDIR": str(directory)}
    return start(command, directory, directory / "job.log", env)


@dataclass
class WatchedRun:
    """The run as of the last `refresh`."""

    source: DaemonSource
    job: str
    detail: dict[str, Any] = field(default_factory=dict)
    incidents: list[dict[str, Any]] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)
    decisions: list[dict[str, Any]] = field(default_factory=list)
    """Newest first."""

    @property
    def page(self) -> str:
        """The address of its live page."""
        return f"{self.source.where}/?job={self.job}"

    def refresh(self) -> None:
        """Asks the daemon; keeps the last values if it does not answer in time."""
        with contextlib.suppress(RunError):
            self.detail = self.source.detail(self.job)
            self.incidents = self.source.incidents(self.job)
            self.decisions = self.source.decisions(self.job)
            self.steps = self.source.series(self.job, POINTS)

    def curve(self, name: str) -> list[float]:
        """One column of the steps; where a step has no value, the last one."""
        values: list[float] = []
        for step in self.steps:
            value = step.get(name)
            values.append(values[-1] if value is None and values else to_float(value))
        return values
