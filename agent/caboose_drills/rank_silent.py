"""rank_silent: one of three ranks is killed, as by the kernel for lack of memory; its peers lose their connection."""

import os
import signal
import time

import torch

from caboose_drills import data, loop, nets
from caboose_drills.drill import Drill
from caboose_drills.run import DrillRun

KILLED_RANK = 1
FAULT_STEP = 120
STEP_SECONDS = 0.01
"""Slow enough that reports are on their way before the next step ends."""


def train(run: DrillRun) -> None:
    """SIGKILL leaves no time for an exit message."""
    task = data.clusters(run.seed, spread=1.5)
    model = nets.mlp(32, 10)

    def kill(step: int) -> None:
        time.sleep(STEP_SECONDS)
        if run.rank == KILLED_RANK and step == FAULT_STEP:
            os.kill(os.getpid(), signal.SIGKILL)

    loop.fit(run, model, torch.optim.Adam(model.parameters(), lr=1e-3), task, batch=32, before_step=kill)


DRILL = Drill(
    name="rank_silent",
    about="one of three ranks is gone without a word: it was killed",
    train=train,
    rule="rank_silent",
    cause="rank_killed",
    origin_ranks=(KILLED_RANK,),
    fault_step=FAULT_STEP - 2,  # the daemon may not have seen the last steps of a process that is killed
    steps=400,
    ranks=3,
    seconds=12.0,
    settle_seconds=14.0,
    is_launched_per_seed=True,
    is_side_by_side=True,
    may_fail=True,
)
