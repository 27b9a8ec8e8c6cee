"""A job in which one rank is slow at one place of the step: slow_rank.py OUT PLACE WRAPPER RANK.

Places: loader, before (the forward), forward, loss (between forward and backward), backward, after (it), optimizer.
Wrappers: ddp, buffers (DDP that broadcasts buffers), fsdp2.

It is slow by half a step, measured before: on a busy machine a step takes long, and a constant would be a small part.
"""

import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import caboose

STEPS = 100
MEASURED = 10
"""Steps before it gets slow."""
LEAST_SECONDS = 0.03


class Slowness:
    """By how long this rank is slow, and where."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._seconds = 0.0
        self._ends: list[float] = []

    def end_step(self) -> None:
        self._ends.append(time.monotonic())
        if len(self._ends) == MEASURED and self._place:
            lasted = sorted(after - before for before, after in pairwise(self._ends))
            self._seconds = max(LEAST_SECONDS, 0.5 * lasted[len(lasted) // 2])

    def sleep(self, place: str) -> None:
        if place == self._place:
            time.sleep(self._seconds)


class Pause(torch.autograd.Function):
    """Does nothing in the forward, and may sleep in the backward."""

    @staticmethod
    def forward(_context: Any, x: torch.Tensor, slowness: Slowness) -> torch.Tensor:
        _context.slowness = slowness
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        context.slowness.sleep("backward")
        return gradient, None


class Optimizer(torch.optim.AdamW):
    """Sleeps in its step."""

    slowness: Slowness

    def step(self, closure: Any = None) -> Any:
        self.slowness.sleep("optimizer")
        return super().step(closure)


class Network(torch.nn.Module):
    def __init__(self, slowness: Slowness, *, has_buffers: bool) -> None:
        super().__init__()
        self.first = torch.nn.Linear(64, 256)
        self.norm = torch.nn.BatchNorm1d(256) if has_buffers else torch.nn.Identity()
        self.second = torch.nn.Linear(256, 256)
        self.head = torch.nn.Linear(256, 1)
        self._slowness = slowness

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._slowness.sleep("forward")
        hidden = torch.relu(self.second(torch.relu(self.norm(self.first(x)))))
        result: torch.Tensor = self.head(Pause.apply(hidden, self._slowness))
        return result


def main() -> None:
    place, wrapper, slow = sys.argv[2], sys.argv[3], int(sys.argv[4])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()

    slowness = Slowness(place if rank == slow else "")
    torch.manual_seed(0)
    network = Network(slowness, has_buffers=wrapper == "buffers")
    model: torch.nn.Module = network
    if wrapper == "fsdp2":
        for part in (network.first, network.second, network.head, network):
            fully_shard(part)
    else:
        model = DistributedDataParallel(network)
    optimizer = Optimizer(model.parameters(), lr=1e-3)
    optimizer.slowness = slowness

    def batches() -> Iterator[torch.Tensor]:
        draw = torch.Generator().manual_seed(rank)
        for _ in range(STEPS):
            slowness.sleep("loader")
            yield torch.randn(64, 64, generator=draw)

    monitor = caboose.attach(model, optimizer)
    for batch in monitor.watch(batches()):
        slowness.sleep("before")
        loss = model(batch).pow(2).mean()
        slowness.sleep("loss")
        loss.backward()
        slowness.sleep("after")
        optimizer.step()
        optimizer.zero_grad()
        monitor.step(loss, num_samples=64)
        slowness.end_step()
    monitor.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
