"""lstm: a recurrent net learns a synthetic language, with Adam and the usual gradient clipping."""

import torch
from torch import Tensor, nn

from caboose_drills import data, loop
from caboose_drills.drill import Drill
from caboose_drills.run import DrillRun


class Recurrent(nn.Module):
    """Embedding, LSTM, a tanh layer, and a head."""

    def __init__(self, vocabulary: int, width: int = 48) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.mix = nn.Sequential(nn.Linear(width, width), nn.Tanh())
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.lstm(self.embed(tokens))
        logits: Tensor = self.head(self.mix(states))
        return logits


def train(run: DrillRun) -> None:
    task = data.text(run.seed, length=16)
    model = Recurrent(vocabulary=32)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loop.fit(run, model, optimizer, task, batch=16, clip=1.0)


DRILL = Drill(
    name="lstm",
    about="healthy: an LSTM with a tanh layer, Adam and gradient clipping",
    train=train,
    steps=600,
    seconds=6.0,
)
