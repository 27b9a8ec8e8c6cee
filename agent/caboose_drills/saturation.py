"""saturation: the weights of tanh layers start far too large, so their units are saturated."""

import torch
from torch import nn

from caboose_drills import data, loop, nets
from caboose_drills.drill import Drill
from caboose_drills.run import DrillRun


def train(run: DrillRun) -> None:
    """The weights have a standard deviation of 1, as from `torch.randn`."""
    task = data.clusters(run.seed)
    model = nets.mlp(32, 10, hidden=(64,) * (3 + run.seed % 2), activation=nn.Tanh)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Linear) and module.out_features == 64:
                module.weight.normal_(0.0, 1.0)
    loop.fit(run, model, torch.optim.Adam(model.parameters(), lr=1e-3), task)


DRILL = Drill(
    name="saturation",
    about="tanh units stand on their flat ends: their weights begin far too large",
    train=train,
    rule="saturation",
    cause="bad_init",
    companions=("config_advice", "gradient_vanishing", "not_learning", "plateau"),
    steps=400,
    seconds=3.0,
)
