"""mlp_classifier: an MLP learns to classify clusters, with Adam at a constant learning rate."""

import torch

from caboose_drills import data, loop, nets
from caboose_drills.drill import Drill
from caboose_drills.run import DrillRun


def train(run: DrillRun) -> None:
    task = data.clusters(run.seed, spread=1.5)
    model = nets.mlp(32, 10)
    loop.fit(run, model, torch.optim.Adam(model.parameters(), lr=1e-3), task)


DRILL = Drill(
    name="mlp_classifier",
    about="healthy: an MLP classifier with Adam at a constant learning rate",
    train=train,
    steps=1000,
    seconds=4.0,
)
