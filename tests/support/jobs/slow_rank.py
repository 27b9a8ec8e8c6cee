"""A job in which one rank is slow at one place of the step: slow_rank.py OUT PLACE WRAPPER RANK.

Places: loader, before (the forward), forward, loss (between forward and backward), backward, after (it), optimizer.
Wrappers: ddp, buffers (DDP that broadcasts buffers), fsdp2.
"""

import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import caboose

STEPS = 90
SECONDS = 0.03


class Pause(torch.autograd.Function):
    """Does nothing in the forward, and may sleep in the backward."""

    @staticmethod
    def forward(_context: Any, x: torch.Tensor, seconds: float) -> torch.Tensor:
        _context.seconds = seconds
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        time.sleep(context.seconds)
        return gradient, None


class Optimizer(torch.optim.AdamW):
    """Sleeps in its step."""

    seconds = 0.0

    def step(self, closure: Any = None) -> Any:
        time.sleep(self.seconds)
        return super().step(closure)


class Network(torch.nn.Module):
    def __init__(self, *, has_buffers: bool, forward_seconds: float, backward_seconds: float) -> None:
        super().__init__()
        self.first = torch.nn.Linear(64, 256)
        self.norm = torch.nn.BatchNorm1d(256) if has_buffers else torch.nn.Identity()
        self.second = torch.nn.Linear(256, 256)
        self.head = torch.nn.Linear(256, 1)
        self._forward_seconds, self._backward_seconds = forward_seconds, backward_seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self._forward_seconds)
        hidden = torch.relu(self.second(torch.relu(self.norm(self.first(x)))))
        result: torch.Tensor = self.head(Pause.apply(hidden, self._backward_seconds))
        return result


def main() -> None:
    place, wrapper, slow = sys.argv[2], sys.argv[3], int(sys.argv[4])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()

    def seconds(at: str) -> float:
        return SECONDS if rank == slow and at == place else 0.0

    torch.manual_seed(0)
    network = Network(
        has_buffers=wrapper == "buffers", forward_seconds=seconds("forward"), backward_seconds=seconds("backward")
    )
    model: torch.nn.Module = network
    if wrapper == "fsdp2":
        for part in (network.first, network.second, network.head, network):
            fully_shard(part)
    else:
        model = DistributedDataParallel(network)
    optimizer = Optimizer(model.parameters(), lr=1e-3)
    optimizer.seconds = seconds("optimizer")

    def batches() -> Iterator[torch.Tensor]:
        draw = torch.Generator().manual_seed(rank)
        for _ in range(STEPS):
            time.sleep(seconds("loader"))
            yield torch.randn(64, 64, generator=draw)

    monitor = caboose.attach(model, optimizer)
    for batch in monitor.watch(batches()):
        time.sleep(seconds("before"))
        loss = model(batch).pow(2).mean()
        time.sleep(seconds("loss"))
        loss.backward()
        time.sleep(seconds("after"))
        optimizer.step()
        optimizer.zero_grad()
        monitor.step(loss, num_samples=64)
    monitor.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
