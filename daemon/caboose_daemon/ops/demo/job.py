"""The demo's training job, as a process."""

import subprocess
import sys
from pathlib import Path

from caboose_daemon.ops.processes import start

BAD_STEPS = 8
"""More than one, so that the damage lasts and the run is better off where it was before."""
STEP_SECONDS = 0.1
"""The run is not faster than this: nobody could follow it, and a snapshot must be some seconds old to be trusted."""


def start_job(directory: Path, endpoint: str, *, job: str, steps: int, spike_at: int) -> "subprocess.Popen[bytes]":
    """The two-rank job under torchrun, which lets itself be rolled back."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
    command += ["-m", "caboose_drills.demo", "--steps", str(steps), "--spike-at", str(spike_at)]
    command += ["--bad-steps", str(BAD_STEPS), "--step-seconds", str(STEP_SECONDS)]
    command += ["--rollback", "auto", "--snapshot-every", "20"]
    env = {"CABOOSE_ENDPOINT": endpoint, "CABOOSE_JOB": job, "OMP_NUM_THREADS": "1", "TMPDIR": str(directory)}
    return start(command, directory, directory / "job.log", env)
