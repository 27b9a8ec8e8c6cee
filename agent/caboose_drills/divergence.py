"""divergence: the learning rate grows at every step until the loss diverges."""

import torch

from caboose_drills import data, loop, nets
from caboose_drills.drill import Drill
from caboose_drills.run import DrillRun


def train(run: DrillRun) -> None:
    """The schedule's factor is above one by a typing error: 1.006 instead of 0.994."""
    task = data.clusters(run.seed, spread=1.5)
    model = nets.mlp(32, 10, hidden=(64 + 8 * (run.seed % 3), 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=1.006)
    loop.fit(run, model, optimizer, task, scheduler=scheduler)


DRILL = Drill(
    name="divergence",
    about="the loss falls, then climbs and stays up: the learning rate grows by 0.6 % at every step",
    train=train,
    rule="divergence",
    cause="lr_too_high",
    # What steps that are too large do to a ReLU net on its way.
    companions=(
        "loss_spike",
        "gradient_explosion",
        "lr_too_high",
        "oscillation",
        "dead_units",
        "frozen_parameters",
        "activation_collapse",
        "non_finite",
        "gradient_vanishing",
    ),
    steps=900,
    seconds=4.0,
)
