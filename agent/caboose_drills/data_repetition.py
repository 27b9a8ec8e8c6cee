"""data_repetition: a large net sees the same few thousand samples again and again, and remembers them."""

import torch

from caboose_drills import data, loop, nets
from caboose_drills.drill import Drill
from caboose_drills.run import DrillRun


def train(run: DrillRun) -> None:
    """Labels that no input explains: all that can be learned is which sample has which."""
    draw = torch.Generator().manual_seed(run.seed)
    inputs, targets = torch.randn(3200, 256, generator=draw), torch.randint(10, (3200,), generator=draw)
    held_out = torch.randn(500, 256, generator=draw), torch.randint(10, (500,), generator=draw)
    task = data.Task(inputs, targets, held_out, num_classes=10)
    model = nets.mlp(256, 10, hidden=(512,))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loop.fit(run, model, optimizer, task, batch=32)


DRILL = Drill(
    name="data_repetition",
    about="the loss falls in stairs at the borders of epochs: samples are memorised one by one",
    train=train,
    rule="data_repetition",
    cause=("memorising", "labels_shuffled"),
    companions=("overfitting", "metric_divergence", "not_learning"),
    severity="info",
    steps=500,
    seconds=5.0,
)
