"""lr_too_low: a learning rate at which no weight changes within the run."""

import torch

from caboose_drills import data, loop, nets
from caboose_drills.drill import Drill
from caboose_drills.run import DrillRun


def train(run: DrillRun) -> None:
    """SGD at 1e-6 instead of 1e-1."""
    task = data.clusters(run.seed, spread=1.5)
    model = nets.mlp(32, 10, hidden=(64,) * (2 + run.seed % 2))
    loop.fit(run, model, torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9), task)


DRILL = Drill(
    name="lr_too_low",
    about="nothing moves: SGD's learning rate is a hundred thousand times too low",
    train=train,
    rule="lr_too_low",
    cause="lr_too_low",
    companions=("not_learning", "underfitting", "config_advice", "metric_divergence"),
    steps=700,
    seconds=3.0,
)
