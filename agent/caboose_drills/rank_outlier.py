"""rank_outlier: one rank reads a bad shard with partly wrong labels, and its loss stays above its peers'."""

import torch
from torch import Tensor

from caboose_drills import data, loop, nets
from caboose_drills.drill import Drill
from caboose_drills.run import DrillRun

BAD_RANK = 1


def train(run: DrillRun) -> None:
    """A third of one rank's labels are random."""
    draw = torch.Generator().manual_seed(run.seed)

    def spoil(_: int, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        if run.rank != BAD_RANK:
            return inputs, targets
        is_wrong = torch.rand(targets.shape, generator=draw) < 0.33
        return inputs, torch.where(is_wrong, torch.randint(10, targets.shape, generator=draw), targets)

    task = data.clusters(run.seed, spread=1.5)
    model = nets.mlp(32, 10)
    loop.fit(run, model, torch.optim.Adam(model.parameters(), lr=1e-3), task, spoil=spoil)


DRILL = Drill(
    name="rank_outlier",
    about="one of three ranks stays apart from its peers: a third of its shard's labels are wrong",
    train=train,
    rule="rank_outlier",
    cause="bad_shard",
    origin_ranks=(BAD_RANK,),
    steps=300,
    ranks=3,
    seconds=8.0,
)
