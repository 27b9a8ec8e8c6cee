"""not_learning_detached: the loss is taken from a detached copy of the outputs, and no parameter gets a gradient."""

import torch
from torch import Tensor

from caboose_drills import data, loop, nets
from caboose_drills.drill import Drill
from caboose_drills.run import DrillRun


def train(run: DrillRun) -> None:
    """The outputs were copied to the host for a metric, and the loss uses the copy by mistake."""

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        copied = outputs.detach().clone().requires_grad_()
        return loop.cross_entropy(copied, targets)

    task = data.clusters(run.seed)
    model = nets.mlp(32, 10, hidden=(48 + 16 * (run.seed % 3), 64))
    loop.fit(run, model, torch.optim.Adam(model.parameters(), lr=1e-3), task, loss=loss)


DRILL = Drill(
    name="not_learning_detached",
    about="the loss never moves: it is taken from a detached copy of the outputs",
    train=train,
    rule="not_learning",
    cause="graph_disconnected",
    companions=("frozen_parameters", "underfitting", "metric_divergence"),
    steps=900,
    seconds=4.0,
)
