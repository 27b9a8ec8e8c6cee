"""regression_mlp: an MLP fits a smooth function, with AdamW and a cosine schedule, down to the noise."""

import torch
from torch import nn

from caboose_drills import data, loop, nets
from caboose_drills.drill import Drill
from caboose_drills.run import DrillRun


def train(run: DrillRun) -> None:
    task = data.regression(run.seed)
    model = nets.mlp(16, 1, hidden=(64, 64), activation=nn.GELU)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: loop.warm_up_then_cosine(step, run.steps, warm_up=50)
    )
    loop.fit(run, model, optimizer, task, scheduler=scheduler)


DRILL = Drill(
    name="regression_mlp",
    about="healthy: an MLP fits a smooth function with AdamW and a cosine schedule",
    train=train,
    steps=1000,
    seconds=4.0,
)
