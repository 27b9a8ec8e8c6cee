"""three_ranks: three ranks train an MLP under DDP, each on its own share of the data."""

import torch

from caboose_drills import data, loop, nets
from caboose_drills.drill import Drill
from caboose_drills.run import DrillRun


def train(run: DrillRun) -> None:
    task = data.clusters(run.seed, spread=1.5)
    model = nets.mlp(32, 10)
    loop.fit(run, model, torch.optim.Adam(model.parameters(), lr=1e-3), task, batch=32)


DRILL = Drill(
    name="three_ranks",
    about="healthy: an MLP on three ranks under DDP",
    train=train,
    steps=400,
    ranks=3,
    seconds=8.0,
)
