"""clipping: every gradient is clipped to a norm far below the run's usual one."""

import torch

from caboose_drills import data, loop, nets
from caboose_drills.drill import Drill
from caboose_drills.run import DrillRun


def train(run: DrillRun) -> None:
    """The clipping limit was copied from a model with other gradients."""
    task = data.clusters(run.seed, spread=1.5)
    model = nets.mlp(32, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loop.fit(run, model, optimizer, task, clip=0.05)


DRILL = Drill(
    name="clipping",
    about="nearly every step is clipped, to a norm far below the usual one",
    train=train,
    rule="clipping",
    cause="clip_too_tight",
    steps=500,
    seconds=3.0,
)
