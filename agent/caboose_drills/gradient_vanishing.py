"""gradient_vanishing: a deep net of sigmoids, each of which passes at most a quarter of the gradient."""

import torch
from torch import nn

from caboose_drills import data, loop, nets
from caboose_drills.drill import Drill
from caboose_drills.run import DrillRun


def train(run: DrillRun) -> None:
    """Ten sigmoid layers with torch's default initialisation, trained with plain SGD."""
    task = data.clusters(run.seed)
    model = nets.mlp(32, 10, hidden=(48,) * (9 + run.seed % 3), activation=nn.Sigmoid)
    loop.fit(run, model, torch.optim.SGD(model.parameters(), lr=0.1), task)


DRILL = Drill(
    name="gradient_vanishing",
    about="gradients fade towards the input: ten layers of sigmoids",
    train=train,
    rule="gradient_vanishing",
    cause="vanishing_depth",
    companions=("not_learning", "plateau", "lr_too_low", "underfitting", "frozen_parameters"),
    origin_layers=("layer1",),
    steps=500,
    seconds=4.0,
)
