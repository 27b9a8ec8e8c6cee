"""overfitting_shift: validation and training samples number their classes differently."""

from dataclasses import replace

import torch

from caboose_drills import data, loop, nets
from caboose_drills.drill import Drill
from caboose_drills.run import DrillRun


def train(run: DrillRun) -> None:
    """Three of ten classes are in another order; the training data is seen once or twice."""
    task = data.clusters(run.seed, size=40_000, spread=1.3)
    inputs, targets = task.held_out
    task = replace(task, held_out=(inputs, torch.tensor([1, 2, 0, *range(3, 10)])[targets]))
    model = nets.mlp(32, 10)
    loop.fit(run, model, torch.optim.Adam(model.parameters(), lr=1e-3), task, validate_every=50)


DRILL = Drill(
    name="overfitting_shift",
    about="validation rises while the training loss falls: three classes are numbered otherwise there",
    train=train,
    rule="overfitting",
    cause="validation_shift",
    companions=("metric_divergence", "generalisation_gap"),
    steps=800,
    seconds=3.0,
)
