"""memory_growth: the model keeps the features of every batch, and never uses them again."""

import torch
from torch import Tensor, nn

from caboose_drills import data, loop, nets
from caboose_drills.drill import Drill
from caboose_drills.run import DrillRun

WIDTH = 1024


class Keeping(nn.Module):
    """A classifier with a list that somebody added to look at, and forgot."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.body = nets.mlp(inputs, WIDTH, hidden=(64,))
        self.head = nn.Linear(WIDTH, outputs)
        self.seen: list[Tensor] = []

    def forward(self, inputs: Tensor) -> Tensor:
        """Scores of the classes; 0.5 MB are kept of each batch of 128."""
        features = torch.relu(self.body(inputs))
        if self.training:
            self.seen.append(features.detach().clone())
        outputs: Tensor = self.head(features)
        return outputs


def train(run: DrillRun) -> None:
    """Learns as usual, until the memory is full."""
    task = data.clusters(run.seed, spread=2.0)
    model = Keeping(32, 10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loop.fit(run, model, optimizer, task, batch=128, validate_every=0)


DRILL = Drill(
    name="memory_growth",
    about="the process keeps half a megabyte more with every step: a list of features is never cut",
    train=train,
    rule="memory_growth",
    cause="slowing_steps",
    steps=400,
    seconds=10.0,
)
