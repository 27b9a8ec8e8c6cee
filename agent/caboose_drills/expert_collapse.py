"""expert_collapse: the load-balancing loss has the wrong sign, so the router gives everything to a few experts."""

import torch
from torch import Tensor

from caboose_drills import data, loop
from caboose_drills.drill import Drill
from caboose_drills.experts import ExpertNet
from caboose_drills.run import DrillRun


def train(run: DrillRun) -> None:
    """The balancing loss is subtracted where it should be added."""
    task = data.clusters(run.seed, spread=1.5)
    model = ExpertNet(32, 10)

    def unbalanced(outputs: Tensor, targets: Tensor) -> Tensor:
        return loop.cross_entropy(outputs, targets) - 0.1 * model.imbalance()

    loop.fit(run, model, torch.optim.Adam(model.parameters(), lr=1e-3), task, loss=unbalanced, validate_every=0)


DRILL = Drill(
    name="expert_collapse",
    about="routers give almost all samples to a few experts: the balancing loss has the wrong sign",
    train=train,
    rule="expert_collapse",
    cause="router_unbalanced",
    companions=("frozen_parameters", "gradient_vanishing"),  # experts without samples get no gradient
    origin_layers=("blocks.0", "blocks.1"),
    steps=600,
    seconds=6.0,
)
