"""nan_input: one rank reads a batch with NaN, and the all-reduce spreads it to all."""

import torch
from torch import Tensor

from caboose_drills import data, loop, nets
from caboose_drills.drill import Drill
from caboose_drills.run import DrillRun

BAD_RANK = 1
FAULT_STEP = 150


def train(run: DrillRun) -> None:
    """A few elements of one batch of one rank's loader are missing values."""

    def spoil(number: int, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        if run.rank == BAD_RANK and number == FAULT_STEP:
            inputs = inputs.clone()
            inputs[run.seed % len(inputs), :3] = float("nan")
        return inputs, targets

    task = data.clusters(run.seed, spread=1.5)
    model = nets.mlp(32, 10)
    loader = data.Spoiled(task.batches(run), spoil)
    loop.fit(run, model, torch.optim.Adam(model.parameters(), lr=1e-3), task, loader=loader, validate_every=0)


DRILL = Drill(
    name="nan_input",
    about="the loss becomes NaN: one rank of two reads a batch with missing values",
    train=train,
    rule="non_finite",
    cause="input_not_finite",
    companions=("bad_batch",),
    origin_ranks=(BAD_RANK,),
    fault_step=FAULT_STEP,
    steps=200,
    ranks=2,
    seconds=3.0,
)
