"""The training that chaos is done to: deterministic, so that its losses can be compared bit for bit.

Used by the job, which attaches Caboose, and by the reference, which does not.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

WIDTH, BATCH = 16, 8


class Batches:
    """A rank's data without an end; one batch may have a NaN, on rank 0."""

    def __init__(self, seed: int, rank: int, bad: int) -> None:
        self._draw = torch.Generator().manual_seed(1000 * seed + rank)
        self._bad = bad if rank == 0 else 0
        self._number = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        return self

    def __next__(self) -> torch.Tensor:
        self._number += 1
        batch = torch.randn(BATCH, WIDTH, generator=self._draw)
        if self._number == self._bad:
            batch[0, 0] = float("nan")
        return batch


class Training:
    """One rank's model, optimizer and schedule."""

    def __init__(self, sharding: str, seed: int) -> None:
        torch.manual_seed(seed)
        network = torch.nn.Sequential(
            torch.nn.Linear(WIDTH, 32),
            torch.nn.Tanh(),
            torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.BatchNorm1d(32), torch.nn.Dropout(0.1)),
            torch.nn.Linear(32, 1),
        )
        self.model = _wrap(network, sharding)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 0.999**step)
        torch.manual_seed(100 * seed + dist.get_rank())  # dropout differs from rank to rank

    def update(self, batch: torch.Tensor) -> torch.Tensor:
        """One optimizer step; returns the loss."""
        loss = (self.model(batch) - batch.sum(dim=1, keepdim=True)).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    def _tensors(self) -> list[torch.Tensor]:
        found: list[Any] = [*self.model.parameters(), *self.model.buffers()]
        for state in self.optimizer.state.values():
            found += [value for value in state.values() if torch.is_tensor(value)]
        return [each.detach().to_local() if hasattr(each, "to_local") else each.detach() for each in found]

    def save(self) -> list[torch.Tensor]:
        """A copy of all that a rollback takes back."""
        return [tensor.clone() for tensor in self._tensors()]

    def go_back(self, saved: list[torch.Tensor], lr_scale: float) -> None:
        """What a rollback does: schedule and random numbers go on."""
        for tensor, before in zip(self._tensors(), saved, strict=True):
            tensor.copy_(before)
        for group in self.optimizer.param_groups:
            group["lr"] *= lr_scale
            group["initial_lr"] *= lr_scale
        self.schedule.base_lrs = [rate * lr_scale for rate in self.schedule.base_lrs]


def _wrap(network: Any, sharding: str) -> torch.nn.Module:
    if sharding == "ddp":
        return torch.nn.parallel.DistributedDataParallel(network)
    from torch.distributed.fsdp import fully_shard

    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    fully_shard(network[2], mesh=mesh)
    fully_shard(network, mesh=mesh)
    return network  # type: ignore[no-any-return]  # in place
