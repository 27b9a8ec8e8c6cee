"""lr_schedule: a run is resumed with its weights and its optimizer, but its scheduler starts again."""

import torch

from caboose_drills import data, loop, nets
from caboose_drills.drill import Drill
from caboose_drills.run import DrillRun

FAULT_STEP = 600


def train(run: DrillRun) -> None:
    """Two attempts: the checkpoint of the first has no scheduler state."""
    task = data.clusters(run.seed, spread=1.5)
    model = nets.mlp(32, 10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    loop.fit(run, model, optimizer, task, scheduler=_cosine(optimizer, run.steps), until=FAULT_STEP - 1)
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    again = nets.mlp(32, 10)
    again.load_state_dict(saved["model"])
    resumed = torch.optim.AdamW(again.parameters(), lr=2e-3)
    resumed.load_state_dict(saved["optimizer"])
    for group in resumed.param_groups:
        group["lr"] = group.pop("initial_lr")
    loop.fit(run, again, resumed, task, scheduler=_cosine(resumed, run.steps), start_step=FAULT_STEP - 1)


def _cosine(optimizer: torch.optim.Optimizer, steps: int) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)


DRILL = Drill(
    name="lr_schedule",
    about="the learning rate is back at its peak after a resume: the scheduler's state was not restored",
    train=train,
    rule="lr_schedule",
    cause="scheduler_not_restored",
    companions=("loss_spike",),
    fault_step=FAULT_STEP,
    steps=800,
    seconds=4.0,
)
