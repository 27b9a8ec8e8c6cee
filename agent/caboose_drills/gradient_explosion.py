"""gradient_explosion: a recurrent net reaches longer sequences, and nothing limits its gradients."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from caboose_drills import data, loop
from caboose_drills.drill import Drill
from caboose_drills.run import DrillRun

FAULT_STEP = 301
SHORT, LONG = 12, 48
"""Time steps of a sequence before and after."""


class Recurrent(nn.Module):
    """A plain ReLU recurrence, initialised as a memory, and a linear output."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.recurrence = nn.RNN(2, width, nonlinearity="relu", batch_first=True)
        self.head = nn.Linear(width, 1)
        with torch.no_grad():
            for name, parameter in self.recurrence.named_parameters():
                if name.startswith("bias"):
                    parameter.zero_()
                elif name.startswith("weight_hh"):
                    parameter.copy_(torch.eye(width))
                else:
                    parameter.normal_(0.0, 0.1)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.recurrence(x)
        answer: Tensor = self.head(states[:, -1])
        return answer


def sorted_by_length(run: DrillRun) -> Iterator[tuple[Tensor, Tensor]]:
    """Short sequences first, as in some curricula."""
    size = 16 * (FAULT_STEP - 1)
    yield from data.adding(run.seed, size=size, length=SHORT).batches(run, 16)
    yield from data.adding(run.seed, size=size, length=LONG).batches(run, 16)


def train(run: DrillRun) -> None:
    """Once recurrent weights exceed 1, long sequences multiply the gradient by them 48 times."""
    model = Recurrent(16 + 4 * (run.seed % 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    task = data.adding(run.seed, size=16, length=SHORT)
    loop.fit(run, model, optimizer, task, loader=sorted_by_length(run), validate_every=0)


DRILL = Drill(
    name="gradient_explosion",
    about="gradients blow up: a recurrent net without clipping comes to sequences four times as long",
    train=train,
    rule="gradient_explosion",
    cause="exploding_gradients",
    companions=(
        "loss_spike",
        "divergence",
        "non_finite",
        "activation_collapse",
        "lr_too_high",
        "throughput_regression",
    ),
    fault_step=FAULT_STEP,
    steps=400,
    seconds=4.0,
)
