"""Divides the snapshots of a replicated model among the ranks: each keeps a part, all restore it together.

Design
------
Parameters and optimizer states of a DDP model are equal on all ranks, so one copy is enough. Each tensor has one owner;
the division depends on names and sizes alone and is the same everywhere. Whatever may differ between ranks (buffers,
extras, the scaler) every rank keeps itself.

Restoring is collective, on the training's own group and only after all ranks have agreed to act: first whether every
rank's part is valid, then one broadcast per bucket of an owner's tensors. That takes about three times as long as a
copy from own memory, for a fraction of the memory.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence

import torch
import torch.distributed as dist

from caboose.rollback.errors import RollbackFailed
from caboose.rollback.slots import Slot, padded, view
from caboose.rollback.training_state import REPLICATED
from caboose.tensors.tensor_tree import Tensors

BUCKET_BYTES = 64 * 2**20


class Owners:
    """Who keeps what."""

    def __init__(self, group: dist.ProcessGroup | None, device: torch.device) -> None:
        self._group = group
        self._device = device
        self.rank = dist.get_rank(group)
        self.world = dist.get_world_size(group)

    def divide(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, int]:
        """The owner of each tensor that is equal on all ranks."""
        shared = [name for name in tensors if name.startswith(REPLICATED)]
        loads = [0] * self.world
        owners = {}
        for name in sorted(shared, key=lambda name: (-tensors[name].nbytes, name)):
            owners[name] = loads.index(min(loads))
            loads[owners[name]] += tensors[name].nbytes
        return owners

    def agree(self, problem: str) -> None:
        """Raises on all ranks if one of them has a problem; collective."""
        problem = self.compare(problem)
        if problem:
            raise RollbackFailed(problem)

    def compare(self, problem: str) -> str:
        """This rank's problem, or that another has one, or nothing; collective."""
        fine = torch.tensor([not problem], dtype=torch.int32, device=self._device)
        dist.all_reduce(fine, op=dist.ReduceOp.MIN, group=self._group)
        return "" if int(fine) else problem or "another rank's part of the snapshot cannot be used"

    def give_back(self, slot: Slot, targets: Tensors) -> None:
        """Writes every shared tensor on every rank, from its owner's slot; collective."""
        for owner in range(self.world):
            names = [name for name in slot.whole.specs if slot.owners.get(name) == owner and name in targets]
            for bucket in _buckets(names, targets):
                self._broadcast(slot, owner, bucket, targets)

    def _broadcast(self, slot: Slot, owner: int, names: Sequence[str], targets: Tensors) -> None:
        starts = list(itertools.accumulate((padded(targets[name].nbytes) for name in names), initial=0))
        staging = torch.empty(starts[-1], dtype=torch.uint8, device=self._device)
        places = [view(staging, slot.whole.specs[name], start) for name, start in zip(names, starts, strict=False)]
        if owner == self.rank:
            torch._foreach_copy_(places, slot.views(names))
        dist.broadcast(staging, group_src=owner, group=self._group)
        torch._foreach_copy_([targets[name] for name in names], places)


def _buckets(names: Sequence[str], tensors: Tensors) -> Iterator[list[str]]:
    bucket: list[str] = []
    size = 0
    for name in names:
        if bucket and size + tensors[name].nbytes > BUCKET_BYTES:
            yield bucket
            bucket, size = [], 0
        bucket.append(name)
        size += tensors[name].nbytes
    if bucket:
        yield bucket
