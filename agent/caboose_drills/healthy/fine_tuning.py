"""fine_tuning: a trained backbone is frozen on purpose, its BatchNorm too, and a new head learns a new task."""

import torch
from torch import nn

from caboose_drills import data, loop, nets
from caboose_drills.drill import Drill
from caboose_drills.run import DrillRun

PRETRAINING_STEPS = 200


class FrozenNorm(nn.BatchNorm1d):
    """BatchNorm that keeps its statistics in any mode."""

    def train(self, mode: bool = True) -> "FrozenNorm":
        """Stays in eval mode once its weights are frozen."""
        super().train(mode and self.weight.requires_grad)
        return self


def pretrained(run: DrillRun, width: int) -> nn.Module:
    """An MLP without its head, trained on another task before the monitor is attached."""
    task = data.clusters(run.seed + 500, width=width, classes=20)
    model = nets.mlp(width, 20, hidden=(64, 64), norm=FrozenNorm)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    batches = task.batches(run)
    for _, (inputs, targets) in zip(range(PRETRAINING_STEPS), batches, strict=False):
        optimizer.zero_grad()
        loop.cross_entropy(model(inputs), targets).backward()  # type: ignore[no-untyped-call]  # torch gives no types
        optimizer.step()
    return model[:-1]


def train(run: DrillRun) -> None:
    """Nothing goes wrong."""
    backbone = pretrained(run, width=32).requires_grad_(False)
    task = data.clusters(run.seed, size=6000, spread=1.5)
    model = nn.Sequential()
    model.add_module("backbone", backbone)
    model.add_module("head", nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)))
    model.train()
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=2e-3)
    loop.fit(run, model, optimizer, task)


DRILL = Drill(
    name="fine_tuning",
    about="healthy: a backbone frozen on purpose, BatchNorm included, under a head that learns",
    train=train,
    steps=800,
    seconds=4.0,
)
