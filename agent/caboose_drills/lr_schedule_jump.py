"""lr_schedule_jump: a milestone multiplies the learning rate by ten instead of dividing it."""

import torch

from caboose_drills import data, loop, nets
from caboose_drills.drill import Drill
from caboose_drills.run import DrillRun

FAULT_STEP = 501


def train(run: DrillRun) -> None:
    """gamma=10 instead of 0.1."""
    task = data.clusters(run.seed, spread=1.5)
    model = nets.mlp(32, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[FAULT_STEP - 1], gamma=10.0)
    loop.fit(run, model, optimizer, task, scheduler=scheduler)


DRILL = Drill(
    name="lr_schedule_jump",
    about="the learning rate jumps to ten times its value at a milestone: gamma is 10 instead of 0.1",
    train=train,
    rule="lr_schedule",
    cause="schedule_jump",
    companions=("loss_spike", "divergence", "gradient_explosion", "lr_too_high", "oscillation", "dead_units"),
    fault_step=FAULT_STEP - 1,
    steps=700,
    seconds=3.0,
)
