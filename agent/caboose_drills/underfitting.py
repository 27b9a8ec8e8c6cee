"""underfitting: a model without a hidden layer, on a task that is not linear."""

import torch
from torch import nn

from caboose_drills import data, loop
from caboose_drills.drill import Drill
from caboose_drills.run import DrillRun


def train(run: DrillRun) -> None:
    """Each class has three clusters, and the model is linear."""
    task = data.clusters(run.seed, width=2 + run.seed % 2, spread=0.2)
    model = nn.Sequential()
    model.add_module("head", nn.Linear(task.inputs.shape[1], 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    batches = task.batches(run, 256, is_shuffled=False)
    loop.fit(run, model, optimizer, task, loader=batches, validate_every=50)


DRILL = Drill(
    name="underfitting",
    about="training and validation loss stay high and close together: a linear model, where no line separates",
    train=train,
    rule="underfitting",
    cause="too_little_capacity",
    companions=("plateau",),
    steps=2000,
    seconds=4.0,
)
