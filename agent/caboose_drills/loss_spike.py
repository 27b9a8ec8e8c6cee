"""loss_spike: one batch is an outlier; the loss jumps, and training recovers."""

import torch
from torch import Tensor

from caboose_drills import data, loop, nets
from caboose_drills.drill import Drill
from caboose_drills.run import DrillRun

FAULT_STEP = 500


def train(run: DrillRun) -> None:
    """One batch is not normalised, thirty times as large, and damages the weights a little."""

    def spoil(step: int, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return (inputs * 30.0 if step == FAULT_STEP else inputs), targets

    task = data.clusters(run.seed, spread=1.5)
    model = nets.mlp(32, 10)
    loop.fit(run, model, torch.optim.Adam(model.parameters(), lr=1e-3), task, spoil=spoil)


DRILL = Drill(
    name="loss_spike",
    about="the loss jumps and recovers: one batch is an outlier, unnormalised and thirty times as large",
    train=train,
    rule="loss_spike",
    cause="outlier_batch",
    companions=("gradient_explosion", "bad_batch"),
    fault_step=FAULT_STEP,
    steps=800,
    seconds=3.0,
)
