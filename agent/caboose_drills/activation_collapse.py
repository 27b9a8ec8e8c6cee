"""activation_collapse: a schedule raises weight decay far too high, and the weights shrink to zero."""

import torch

from caboose_drills import data, loop, nets
from caboose_drills.drill import Drill
from caboose_drills.run import DrillRun

FAULT_STEP = 400


def train(run: DrillRun) -> None:
    """The decay is a thousand times too large: each step removes 5 % of the weights."""
    task = data.clusters(run.seed, spread=1.5)
    model = nets.mlp(32, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=5e-4)

    def before_step(step: int) -> None:
        if step == FAULT_STEP:
            optimizer.param_groups[0]["weight_decay"] = 0.5

    loop.fit(run, model, optimizer, task, before_step=before_step)


DRILL = Drill(
    name="activation_collapse",
    about="what layers put out shrinks to nothing: weight decay was raised a thousandfold by mistake",
    train=train,
    rule="activation_collapse",
    cause="weights_decay_away",
    companions=(
        "gradient_vanishing",
        "loss_spike",
        "divergence",
        "plateau",
        "not_learning",
        "dead_units",
        "lr_too_high",
    ),
    fault_step=FAULT_STEP,
    steps=700,
    seconds=4.0,
)
