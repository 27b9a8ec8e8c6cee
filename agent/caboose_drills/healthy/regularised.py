"""regularised: dropout and weight decay limit a net on little data, until it has learned what it can."""

import torch

from caboose_drills import data, loop, nets
from caboose_drills.drill import Drill
from caboose_drills.run import DrillRun


def train(run: DrillRun) -> None:
    """Training ends flat, at the level that noise and dropout leave."""
    task = data.clusters(run.seed, size=4000, classes=5, spread=1.5)
    model = nets.mlp(32, 5, hidden=(96, 96), dropout=0.3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, run.steps, eta_min=1e-5)
    loop.fit(run, model, optimizer, task, scheduler=scheduler)


DRILL = Drill(
    name="regularised",
    about="healthy: dropout and weight decay, trained to convergence with a cosine schedule",
    train=train,
    steps=1200,
    seconds=5.0,
)
