"""straggler: one rank does extra work on every step, and its peers wait for it in the all-reduce."""

import torch
from torch import Tensor, nn

from caboose_drills import data, loop, nets
from caboose_drills.drill import Drill
from caboose_drills.run import DrillRun

SLOW_RANK = 2


def train(run: DrillRun) -> None:
    """A debugging hook on one rank computes the singular values of every hidden layer."""
    task = data.clusters(run.seed, spread=1.5)
    model = nets.mlp(32, 10)
    if run.rank == SLOW_RANK:
        for layer in list(model)[:-1]:
            layer.register_forward_hook(look_closely)
    loop.fit(run, model, torch.optim.Adam(model.parameters(), lr=1e-3), task, batch=32)


def look_closely(_: nn.Module, __: tuple[Tensor, ...], output: Tensor) -> None:
    """How many directions the layer uses; slow on purpose, as such code is."""
    padded = nn.functional.pad(output.detach(), (0, 96, 0, 352))
    torch.linalg.svdvals(padded @ padded.T + torch.eye(len(padded)))


DRILL = Drill(
    name="straggler",
    about="two of three ranks wait for the third, which runs a debugging hook in its forward",
    train=train,
    rule="straggler",
    cause="slow_rank",
    origin_ranks=(SLOW_RANK,),
    steps=170,
    ranks=3,
    seconds=12.0,
)
