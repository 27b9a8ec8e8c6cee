"""mixture_of_experts: layers of experts with a load-balancing loss."""

import torch
from torch import Tensor

from caboose_drills import data, loop
from caboose_drills.drill import Drill
from caboose_drills.experts import ExpertNet
from caboose_drills.run import DrillRun


def train(run: DrillRun) -> None:
    task = data.clusters(run.seed, spread=1.5)
    model = ExpertNet(32, 10)

    def balanced(outputs: Tensor, targets: Tensor) -> Tensor:
        return loop.cross_entropy(outputs, targets) + 0.01 * model.imbalance()

    loop.fit(run, model, torch.optim.Adam(model.parameters(), lr=1e-3), task, loss=balanced, validate_every=0)


DRILL = Drill(
    name="mixture_of_experts",
    about="healthy: layers of experts, with a load-balancing loss",
    train=train,
    steps=500,
    seconds=5.0,
)
