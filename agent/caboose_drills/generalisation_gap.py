"""generalisation_gap: validation targets were measured far less exactly than those of training."""

from dataclasses import replace

import torch

from caboose_drills import data, loop, nets
from caboose_drills.drill import Drill
from caboose_drills.run import DrillRun


def train(run: DrillRun) -> None:
    """The training data is seen once or twice; the noise of another instrument lies on the validation targets."""
    task = data.regression(run.seed)
    inputs, targets = task.held_out
    draw = torch.Generator().manual_seed(run.seed)
    task = replace(task, held_out=(inputs, targets + 1.5 * torch.randn(targets.shape, generator=draw)))
    model = nets.mlp(16, 1)
    loop.fit(run, model, torch.optim.Adam(model.parameters(), lr=3e-3), task, validate_every=50)


DRILL = Drill(
    name="generalisation_gap",
    about="validation stays far above training: its targets come from a less exact instrument",
    train=train,
    rule="generalisation_gap",
    cause="validation_shift",
    steps=800,
    seconds=3.0,
)
