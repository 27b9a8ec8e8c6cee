"""lr_too_high: Adam at a hundred times the learning rate that suits the model."""

import torch

from caboose_drills import data, loop, nets
from caboose_drills.drill import Drill
from caboose_drills.run import DrillRun


def train(run: DrillRun) -> None:
    """0.1 instead of 0.001."""
    task = data.clusters(run.seed, spread=1.5)
    model = nets.mlp(32, 10, hidden=(64,) * (2 + run.seed % 2))
    loop.fit(run, model, torch.optim.Adam(model.parameters(), lr=0.1), task, sample_every=10)


DRILL = Drill(
    name="lr_too_high",
    about="the weights change by too much per step: Adam's learning rate is a hundred times too high",
    train=train,
    rule="lr_too_high",
    cause="lr_too_high",
    # What steps that are too large do to a ReLU net.
    companions=(
        "loss_spike",
        "gradient_explosion",
        "gradient_vanishing",
        "divergence",
        "oscillation",
        "not_learning",
        "plateau",
        "underfitting",
        "dead_units",
        "frozen_parameters",
        "activation_collapse",
        "config_advice",
    ),
    steps=500,
    seconds=3.0,
)
