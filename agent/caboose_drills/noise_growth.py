"""noise_growth: the easy part is learned within some dozen steps; then the batch is far too small for what is left."""

import torch
from torch import Tensor

from caboose_drills import data, loop, nets
from caboose_drills.drill import Drill
from caboose_drills.run import DrillRun


def train(run: DrillRun) -> None:
    """A fifth of the labels are wrong: once the rest is learned, they are all that the gradient of a batch shows."""
    draw = torch.Generator().manual_seed(1000 * run.seed + run.rank)

    def spoil(_: int, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        is_wrong = torch.rand(targets.shape, generator=draw) < 0.2
        return inputs, torch.where(is_wrong, torch.randint(10, targets.shape, generator=draw), targets)

    task = data.clusters(run.seed, spread=1.0)
    model = nets.mlp(32, 10, hidden=(64,))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    loop.fit(run, model, optimizer, task, batch=64, spoil=spoil, sample_every=4, validate_every=0)


DRILL = Drill(
    name="noise_growth",
    about="the gradient noise scale outgrows the batch as the easy part is learned: a batch ramp is suggested",
    train=train,
    rule="noise_growth",
    cause="batch_too_small",
    companions=("batch_size",),
    severity="info",
    steps=800,
    ranks=2,
    seconds=10.0,
)
