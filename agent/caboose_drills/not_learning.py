"""not_learning: the labels are shuffled against the inputs, so there is nothing to learn."""

from dataclasses import replace

import torch

from caboose_drills import data, loop, nets
from caboose_drills.drill import Drill
from caboose_drills.run import DrillRun


def train(run: DrillRun) -> None:
    """Inputs and labels were sorted separately when the dataset was made."""
    classes = 8 + run.seed % 5
    task = data.clusters(run.seed, classes=classes)
    draw = torch.Generator().manual_seed(run.seed)
    task = replace(task, targets=task.targets[torch.randperm(len(task.targets), generator=draw)])
    model = nets.mlp(32, classes)
    loop.fit(run, model, torch.optim.Adam(model.parameters(), lr=1e-3), task)


DRILL = Drill(
    name="not_learning",
    about="the loss stays at chance: the labels were shuffled against the inputs",
    train=train,
    rule="not_learning",
    cause="labels_shuffled",
    companions=("underfitting", "overfitting", "metric_divergence"),
    steps=900,
    seconds=4.0,
)
