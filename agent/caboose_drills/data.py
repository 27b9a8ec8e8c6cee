"""Synthetic tasks that can be learned: clusters to classify, a function to fit, text to continue."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from caboose_drills.run import DrillRun
from caboose_drills.text import TextStream

HELD_OUT = 1000


@dataclass(frozen=True)
class Task:
    """Training samples and validation samples from one distribution."""

    inputs: Tensor
    targets: Tensor
    held_out: tuple[Tensor, Tensor]
    num_classes: int | None = None

    def batches(self, run: DrillRun, batch: int = 64, *, is_shuffled: bool = True) -> "DrillBatches":
        """This rank's share, in batches, in a new order every epoch, or in stored order to save time."""
        mine = slice(run.rank, None, run.world)
        seed = 1000 * run.seed + run.rank
        return DrillBatches(self.inputs[mine], self.targets[mine], batch, seed=seed, is_shuffled=is_shuffled)


class DrillBatches:
    """A loader: one pass over it is an epoch."""

    def __init__(
        self, inputs: Tensor, targets: Tensor, batch_size: int, seed: int, *, is_shuffled: bool = True
    ) -> None:
        self.dataset = torch.utils.data.TensorDataset(inputs, targets)
        self.batch_size = batch_size
        self._order = torch.Generator().manual_seed(seed)
        self._is_shuffled = is_shuffled

    def __len__(self) -> int:
        return max(1, len(self.dataset) // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        inputs, targets = self.dataset.tensors
        order = torch.randperm(len(inputs), generator=self._order) if self._is_shuffled else None
        for number in range(len(self)):
            place = slice(number * self.batch_size, (number + 1) * self.batch_size)
            chosen = place if order is None else order[place]
            yield inputs[chosen], targets[chosen]


class Spoiled:
    """A loader whose batches are changed: `spoil` gets each batch with its number, from 1, and may change it."""

    def __init__(self, loader: DrillBatches, spoil: Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]) -> None:
        self.dataset = loader.dataset
        self.batch_size = loader.batch_size
        self._loader = loader
        self._spoil = spoil
        self._number = 0

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for inputs, targets in self._loader:
            self._number += 1
            yield self._spoil(self._number, inputs, targets)


def clusters(seed: int, *, size: int = 20_000, classes: int = 10, width: int = 32, spread: float = 1.0) -> Task:
    """The class of a point; each class has three clusters, so a linear model is not enough.

    With `spread` 1 a small MLP reaches a loss of about 0.1; with 2 it stays near 1.
    """
    draw = torch.Generator().manual_seed(seed)
    centres = 1.2 * torch.randn(classes * 3, width, generator=draw)
    which = torch.randint(len(centres), (size + HELD_OUT,), generator=draw)
    inputs = centres[which] + spread * torch.randn(len(which), width, generator=draw)
    return _task(inputs, which % classes, classes)


def regression(seed: int, *, size: int = 20_000, width: int = 16, noise: float = 0.1) -> Task:
    """The value of a smooth random function, scaled to mean 0 and variance 1, with noise."""
    draw = torch.Generator().manual_seed(seed)
    inputs = torch.randn(size + HELD_OUT, width, generator=draw)
    hidden = torch.tanh(inputs @ torch.randn(width, 24, generator=draw) / width**0.5 * 1.5)
    values = hidden @ torch.randn(24, 1, generator=draw)
    values = (values - values.mean()) / values.std()
    return _task(inputs, values + noise * torch.randn(values.shape, generator=draw), None)


def adding(seed: int, *, size: int = 4000, length: int = 80) -> Task:
    """The sum of the two marked numbers of a sequence, one in each half, which the model must remember."""
    draw = torch.Generator().manual_seed(seed)
    num = size + HELD_OUT
    values, marks = torch.rand(num, length, generator=draw), torch.zeros(num, length)
    for low, high in ((0, length // 2), (length // 2, length)):
        marks[torch.arange(num), torch.randint(low, high, (num,), generator=draw)] = 1.0
    return _task(torch.stack((values, marks), dim=-1), (values * marks).sum(dim=1, keepdim=True) - 1.0, None)


def text(seed: int, *, size: int = 4000, vocabulary: int = 32, length: int = 24) -> Task:
    """The next letter of a synthetic language, at every position."""
    stream = TextStream(vocabulary=vocabulary, length=length, batch=size + HELD_OUT // 4, seed=seed)
    tokens = next(stream)
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    return Task(inputs[:size], targets[:size], (inputs[size:], targets[size:]), vocabulary)


def _task(inputs: Tensor, targets: Tensor, classes: int | None) -> Task:
    held_out = inputs[-HELD_OUT:], targets[-HELD_OUT:]
    return Task(inputs[:-HELD_OUT], targets[:-HELD_OUT], held_out, classes)
