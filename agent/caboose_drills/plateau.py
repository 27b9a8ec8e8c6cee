"""plateau: a schedule made for epochs is stepped at every batch, and the learning rate ends long before the run."""

import torch

from caboose_drills import data, loop, nets
from caboose_drills.drill import Drill
from caboose_drills.run import DrillRun


def train(run: DrillRun) -> None:
    """StepLR divides the learning rate by ten every thirty batches instead of every thirty epochs."""
    task = data.clusters(run.seed, spread=1.5)
    model = nets.mlp(32, 10)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=25 + 5 * (run.seed % 3), gamma=0.1)
    loop.fit(run, model, optimizer, task, scheduler=scheduler)


DRILL = Drill(
    name="plateau",
    about="the loss stops high: a schedule made for epochs is stepped at every batch, and the rate decays to nothing",
    train=train,
    rule="plateau",
    cause="lr_decayed",
    # Flat since its first steps; and evaluations of weights that do not move are all the same.
    companions=("lr_schedule", "underfitting", "not_learning", "metric_divergence"),
    steps=700,
    seconds=4.0,
)
