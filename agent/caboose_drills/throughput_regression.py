"""throughput_regression: every step compares its features with those of all steps before, so steps become longer."""

import torch
from torch import Tensor, nn

from caboose_drills import data, loop, nets
from caboose_drills.drill import Drill
from caboose_drills.run import DrillRun

WIDTH = 64


class WithBank(nn.Module):
    """A classifier with an unbounded memory bank."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.body = nets.mlp(inputs, WIDTH, hidden=(64, 64))
        self.head = nn.Linear(2 * WIDTH, outputs)
        self.bank: list[Tensor] = []

    def forward(self, inputs: Tensor) -> Tensor:
        """Features, and the mean of the bank's features weighted by similarity."""
        features = torch.tanh(self.body(inputs))
        recalled = torch.zeros_like(features)
        if self.training and self.bank:
            bank = torch.cat(self.bank)
            recalled = torch.softmax(features.detach() @ bank.T, dim=1) @ bank
        if self.training:
            self.bank.append(features.detach())
        outputs: Tensor = self.head(torch.cat([features, recalled], dim=1))
        return outputs


def train(run: DrillRun) -> None:
    """The bank keeps the features of every batch since the first."""
    task = data.clusters(run.seed, spread=2.0)
    model = WithBank(32, 10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loop.fit(run, model, optimizer, task, batch=64, validate_every=0)


DRILL = Drill(
    name="throughput_regression",
    about="steps take longer and longer: a memory bank grows with every step and is never cut",
    train=train,
    rule="throughput_regression",
    cause="slowing_steps",
    steps=1300,
    seconds=20.0,
)
