"""underfitting_decay: weight decay is so strong that the model cannot learn what it could."""

import torch

from caboose_drills import data, loop, nets
from caboose_drills.drill import Drill
from caboose_drills.run import DrillRun


def train(run: DrillRun) -> None:
    """A thousand times the usual weight decay keeps the weights small."""
    task = data.clusters(run.seed)
    model = nets.mlp(32, 10, hidden=(64,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.23 + 0.02 * (run.seed % 3))
    batches = task.batches(run, 256, is_shuffled=False)
    loop.fit(run, model, optimizer, task, loader=batches, validate_every=25)


DRILL = Drill(
    name="underfitting_decay",
    about="training and validation loss stay high and close together: the weight decay is far too strong",
    train=train,
    rule="underfitting",
    cause="over_regularised",
    companions=("plateau", "not_learning"),
    steps=2000,
    seconds=6.0,
)
