"""batch_size: one sample per rank, many classes, and many wrong labels: the gradients are noise."""

import torch
from torch import Tensor

from caboose_drills import data, loop, nets
from caboose_drills.drill import Drill
from caboose_drills.run import DrillRun

CLASSES = 50


def train(run: DrillRun) -> None:
    """Half of the labels are wrong, so one sample means almost nothing; batches of hundreds would average that out."""
    draw = torch.Generator().manual_seed(1000 * run.seed + run.rank)

    def spoil(_: int, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        is_wrong = torch.rand(targets.shape, generator=draw) < 0.5
        return inputs, torch.where(is_wrong, torch.randint(CLASSES, targets.shape, generator=draw), targets)

    task = data.clusters(run.seed, classes=CLASSES, spread=2.0)
    model = nets.mlp(32, CLASSES, hidden=(64,))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loop.fit(run, model, optimizer, task, batch=1, spoil=spoil, sample_every=5, validate_every=0)


DRILL = Drill(
    name="batch_size",
    about="the loss stops falling in noise: one sample a rank, where hundreds would be needed",
    train=train,
    rule="batch_size",
    cause="batch_too_small",
    companions=("oscillation", "plateau", "not_learning"),  # what noise leaves of a curve
    steps=400,
    ranks=3,
    seconds=11.0,
)
