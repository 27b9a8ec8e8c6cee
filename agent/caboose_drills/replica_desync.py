"""replica_desync: a bit of one weight flips on one of three ranks, as with faulty memory."""

import torch

from caboose_drills import data, loop, nets
from caboose_drills.drill import Drill
from caboose_drills.run import DrillRun

BAD_RANK = 1
FAULT_STEP = 110
HIGH_MANTISSA_BIT = 22


def train(run: DrillRun) -> None:
    """One bit of one weight on one rank; the seed decides which weight."""
    task = data.clusters(run.seed, spread=1.5)
    model = nets.mlp(32, 10)
    weight = nets.linear(model, "layer2.linear").weight

    def flip(step: int) -> None:
        if run.rank == BAD_RANK and step == FAULT_STEP:
            bits = weight.data.view(torch.int32).flatten()
            bits[run.seed * 37 % len(bits)] ^= 1 << HIGH_MANTISSA_BIT

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loop.fit(run, model, optimizer, task, batch=32, after_update=flip)


DRILL = Drill(
    name="replica_desync",
    about="the replica of one of three ranks differs from the others: a bit of one weight flipped",
    train=train,
    rule="replica_desync",
    cause="hardware_fault",
    origin_ranks=(BAD_RANK,),
    origin_layers=("layer2",),
    fault_step=FAULT_STEP,
    steps=190,
    ranks=3,
    seconds=8.0,
)
