"""frozen_unregistered: the head was replaced after the optimizer was created, so it is in no optimizer."""

import torch
from torch import nn

from caboose_drills import data, loop, nets
from caboose_drills.drill import Drill
from caboose_drills.run import DrillRun


def train(run: DrillRun) -> None:
    """Fine-tuning in the wrong order."""
    task = data.clusters(run.seed, spread=1.5)
    model = nets.mlp(32, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model.head = nn.Linear(64, 10)
    loop.fit(run, model, optimizer, task)


DRILL = Drill(
    name="frozen_unregistered",
    about="the head never moves: it was replaced after the optimizer was made",
    train=train,
    rule="frozen_parameters",
    cause="parameters_unregistered",
    origin_layers=("head",),
    steps=400,
    seconds=3.0,
)
