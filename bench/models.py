"""The measured training steps: model, optimizer, data and the order of calls in one step.

Design
------
A workload is made once per run and restored before every block, so that each block computes exactly the same
numbers from the same batches: a variant is never compared with a model that has meanwhile learned (small gradients
turn into denormals, which a CPU computes slowly). There is no gradient clipping in the step: a clipping loop computes
a norm itself, which an observer could reuse, so a loop without it is the harder case for every variant.
"""

import copy
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn import functional as F

from caboose_drills.transformer import Transformer

NUM_BATCHES = 8

Batch = tuple[torch.Tensor, torch.Tensor]


def _nothing(*_: object) -> None:
    return None


def _same(loader: Iterable[Batch]) -> Iterable[Batch]:
    return loader


@dataclass
class Calls:
    """What a variant adds to a training loop, besides hooks on the model."""

    after_backward: Callable[[], None] = _nothing
    after_step: Callable[[torch.Tensor], None] = _nothing
    watch: Callable[[Iterable[Batch]], Iterable[Batch]] = _same
    own_seconds: Callable[[], float] | None = None
    """Seconds on the training thread measured by the variant since it was opened, if it can."""
    helpers: Callable[[], list[int]] = field(default=list)
    """Processes on this host that work for the variant and count as its cost."""
    elsewhere: list[int] = field(default_factory=list)
    """Processes whose cost is shown separately, because they need not run on the training host."""


class Workload:
    """One model with everything a step needs."""

    def __init__(self, name: str, model: nn.Module, loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        self.name = name
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        self.loss = loss
        self._batches: list[Batch] = []
        self._initial = copy.deepcopy(model.state_dict())

    @property
    def num_tensors(self) -> int:
        """Parameter tensors: the cost driver of per-parameter observers."""
        return len(list(self.model.parameters()))

    @property
    def num_parameters(self) -> int:
        """Elements in all parameters."""
        return sum(p.numel() for p in self.model.parameters())

    def with_batches(self, draw: Callable[[torch.Generator], Batch]) -> "Workload":
        """The same workload, with a fixed set of batches."""
        generator = torch.Generator().manual_seed(11)
        self._batches = [draw(generator) for _ in range(NUM_BATCHES)]
        return self

    def restore(self) -> None:
        """Restores the initial weights, buffers and optimizer."""
        self.model.load_state_dict(self._initial)
        self.optimizer.state.clear()
        self.optimizer.zero_grad()

    def stream(self) -> Iterator[Batch]:
        """The batches, repeated forever."""
        return itertools.cycle(self._batches)

    def step(self, batch: Batch, calls: Calls) -> None:
        """One training step; bare if the calls do nothing."""
        inputs, targets = batch
        loss = self.loss(self.model(inputs), targets)
        loss.backward()
        calls.after_backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        calls.after_step(loss)


def mlp() -> Workload:
    """Few large tensors and a short step."""
    sizes = (256, 512, 512, 512, 512)
    layers: list[nn.Module] = []
    for narrow, wide in itertools.pairwise(sizes):
        layers += [nn.Linear(narrow, wide), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(sizes[-1], 10))
    return Workload("mlp", model, F.cross_entropy).with_batches(
        lambda g: (torch.randn(128, 256, generator=g), torch.randint(10, (128,), generator=g))
    )


def convnet() -> Workload:
    """Convolutions with BatchNorm: small parameters, large activations."""
    layers: list[nn.Module] = []
    for inner, outer, stride in ((3, 32, 1), (32, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2), (128, 128, 1)):
        layers += [nn.Conv2d(inner, outer, 3, stride=stride, padding=1, bias=False), nn.BatchNorm2d(outer), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))
    return Workload("convnet", model, F.cross_entropy).with_batches(
        lambda g: (torch.randn(16, 3, 32, 32, generator=g), torch.randint(10, (16,), generator=g))
    )


def transformer() -> Workload:
    """Many small tensors (102 of them): the hardest case for anything that works per parameter."""
    vocabulary, length = 256, 64
    model = Transformer(vocabulary=vocabulary, length=length, width=160, heads=4, depth=8)

    def draw(generator: torch.Generator) -> Batch:
        tokens = torch.randint(vocabulary, (4, length + 1), generator=generator)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    return Workload("transformer", model, lambda y, t: F.cross_entropy(y.flatten(0, 1), t.flatten())).with_batches(draw)


def tiny() -> Workload:
    """A step of about 2 ms: what reinforcement learning and small models have. See `tiny`."""
    model = nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4))
    return Workload("tiny", model, F.mse_loss).with_batches(
        lambda g: (torch.randn(320, 16, generator=g), torch.randn(320, 4, generator=g))
    )


MODELS: dict[str, Callable[[], Workload]] = {"mlp": mlp, "convnet": convnet, "transformer": transformer}
SHORT: dict[str, Callable[[], Workload]] = {"tiny": tiny}
"""Too short to be compared with a twin."""


def build(name: str) -> Workload:
    """A workload, the same every time."""
    torch.manual_seed(5)
    return {**MODELS, **SHORT}[name]()
