"""dead_units: a ReLU layer has a strongly negative bias, so most of its units are always zero."""

import torch

from caboose_drills import data, loop, nets
from caboose_drills.drill import Drill
from caboose_drills.run import DrillRun


def train(run: DrillRun) -> None:
    """The second layer's biases are far below anything that its inputs can compensate."""
    task = data.clusters(run.seed)
    model = nets.mlp(32, 10)
    with torch.no_grad():
        nets.linear(model, "layer2.linear").bias[: 64 * 7 // 8] -= 20.0
    loop.fit(run, model, torch.optim.Adam(model.parameters(), lr=1e-3), task)


DRILL = Drill(
    name="dead_units",
    about="most units of a ReLU layer never fire: their biases start strongly negative",
    train=train,
    rule="dead_units",
    cause=("bad_init", "dying_relu"),
    companions=("frozen_parameters",),  # the rows of dead units get no gradient
    origin_layers=("layer2",),
    steps=600,
    seconds=3.0,
)
