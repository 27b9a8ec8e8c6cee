"""plateau_saddle: all units of a layer start equal and stay equal, so a wide net learns what a single unit can."""

import torch
from torch import nn

from caboose_drills import data, loop, nets
from caboose_drills.drill import Drill
from caboose_drills.run import DrillRun


def train(run: DrillRun) -> None:
    """All weights of the hidden layers are equal, so their gradients are equal too and stay so."""
    task = data.clusters(run.seed, spread=1.5)
    model = nets.mlp(32, 10, hidden=(64, 64), activation=nn.Tanh)
    for name in ("layer1.linear", "layer2.linear"):
        nn.init.constant_(nets.linear(model, name).weight, 0.05 + 0.01 * (run.seed % 3))
        nn.init.zeros_(nets.linear(model, name).bias)
    nn.init.zeros_(nets.linear(model, "head").weight)
    loop.fit(run, model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), task)


DRILL = Drill(
    name="plateau_saddle",
    about="the loss stops near where it began: all units of a layer began with the same weights",
    train=train,
    rule="plateau",
    cause=("saddle", "bad_init"),
    companions=("underfitting", "saturation"),
    steps=900,
    seconds=4.0,
)
