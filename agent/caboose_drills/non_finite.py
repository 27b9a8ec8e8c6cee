"""non_finite: the loss takes a logarithm of zero once the model is confident enough."""

import torch
from torch import Tensor

from caboose_drills import data, loop, nets
from caboose_drills.drill import Drill
from caboose_drills.run import DrillRun


def binary_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Without a clamp: where the sigmoid rounds to 1, log(1 - p) is minus infinity, and 0 times that is NaN."""
    p = torch.sigmoid(outputs.squeeze(-1))
    return -(targets * torch.log(p) + (1 - targets) * torch.log(1 - p)).mean()


def train(run: DrillRun) -> None:
    """Two classes that are easy to separate; the logits grow until the sigmoid rounds to 1 in float32."""
    task = data.clusters(run.seed, classes=2, spread=0.5)
    model = nets.mlp(32, 1)
    loop.fit(
        run,
        model,
        torch.optim.Adam(model.parameters(), lr=3e-3),
        task,
        loss=binary_cross_entropy,
        validate_every=0,
    )


DRILL = Drill(
    name="non_finite",
    about="the loss becomes NaN: a hand-written cross entropy takes log(0) once the model is sure of itself",
    train=train,
    rule="non_finite",
    cause="log_of_zero",
    steps=500,
    seconds=3.0,
)
