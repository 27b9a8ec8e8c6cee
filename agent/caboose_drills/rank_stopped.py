"""rank_stopped: one of two ranks is stopped, as a suspended process is; its peer waits in the all-reduce."""

import os
import signal
import subprocess
import sys
import time

import torch

from caboose_drills import data, loop, nets
from caboose_drills.drill import Drill
from caboose_drills.run import DrillRun

STOPPED_RANK = 1
FAULT_STEP = 120
SECONDS = 16.0
STEP_SECONDS = 0.01
"""Slow enough that reports are on their way before the next step ends."""
WAKE = "import os, signal, sys, time; time.sleep(float(sys.argv[2])); os.kill(int(sys.argv[1]), signal.SIGCONT)"


def train(run: DrillRun) -> None:
    """SIGSTOP stops every thread, the agent's too; another process must continue it."""
    task = data.clusters(run.seed, spread=1.5)
    model = nets.mlp(32, 10)

    def stop(step: int) -> None:
        time.sleep(STEP_SECONDS)
        if run.rank == STOPPED_RANK and step == FAULT_STEP:
            command = [sys.executable, "-c", WAKE, str(os.getpid()), str(SECONDS)]
            with subprocess.Popen(command):  # noqa: S603
                os.kill(os.getpid(), signal.SIGSTOP)

    loop.fit(run, model, torch.optim.Adam(model.parameters(), lr=1e-3), task, batch=32, before_step=stop)


DRILL = Drill(
    name="rank_stopped",
    about="one of two ranks reports nothing for a while and the other waits for it: its process is stopped",
    train=train,
    rule="rank_silent",
    cause="rank_hung",
    companions=("monitor_blind",),  # reports that it had not sent yet come too late
    origin_ranks=(STOPPED_RANK,),
    fault_step=FAULT_STEP - 2,
    steps=200,
    ranks=2,
    seconds=10.0,
    is_launched_per_seed=True,
    is_side_by_side=True,
)
