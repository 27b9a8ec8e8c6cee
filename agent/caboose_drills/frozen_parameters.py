"""frozen_parameters: the first layers get no gradient, because their output is detached."""

import torch
from torch import Tensor, nn

from caboose_drills import data, loop, nets
from caboose_drills.drill import Drill
from caboose_drills.run import DrillRun


class Detached(nn.Module):
    """A net whose stem is cut off from the loss by a `.detach()` left from debugging."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.stem = nets.mlp(inputs, 64, hidden=(64,))
        self.body = nets.mlp(64, outputs, hidden=(64, 64))

    def forward(self, inputs: Tensor) -> Tensor:
        """The body learns from the output of a random stem."""
        outputs: Tensor = self.body(torch.relu(self.stem(inputs).detach()))
        return outputs


def train(run: DrillRun) -> None:
    """All parameters are in the optimizer; those of the stem never get a gradient."""
    task = data.clusters(run.seed, spread=1.5)
    model = Detached(32, 10)
    loop.fit(run, model, torch.optim.Adam(model.parameters(), lr=1e-3), task)


DRILL = Drill(
    name="frozen_parameters",
    about="the first layers never get a gradient: their output is detached",
    train=train,
    rule="frozen_parameters",
    cause="parameters_frozen",
    origin_layers=("stem",),
    steps=400,
    seconds=3.0,
)
