"""Directions in the space of the weights, for any sharding.

Design
------
A direction is a list of this rank's parts. It is drawn complete from a seeded generator on the host and then cut like
the parameter, so that it is the same on every rank and for every sharding. Sums over a sharded direction are added
over the ranks, and divided by the number of copies of each shard.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch

from caboose.tensors.placement import Placements, own
from caboose.tensors.shards import reshard
from caboose.trials.trial import Trial

Direction = list[torch.Tensor]


class WeightSpace:
    """The trained parameters of one trial."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self.parameters = [p for p in trial.parameters if p.requires_grad]
        placements = Placements(trial.model, trial.ranks.num)
        self._replicas = [placements.of(p).replicas if trial.is_sharded else 1 for p in self.parameters]
        self._start = [own(p).detach().clone() for p in self.parameters]

    def draw(self, seed: int) -> Direction:
        """Normally distributed, the same for the same seed."""
        generator = torch.Generator().manual_seed(seed)
        found = []
        for parameter in self.parameters:
            whole = torch.randn(parameter.shape, generator=generator).to(parameter.device, parameter.dtype)
            found.append(_cut(whole, parameter))
        return found

    def draw_by_filter(self, seed: int) -> Direction:
        """Each filter (row) as long as the weights' own filter; biases and norms do not move."""
        found = []
        for part, start in zip(self.draw(seed), self._start, strict=True):
            if start.dim() < 2 or not start.numel():
                found.append(torch.zeros_like(start))
                continue
            rows = (part.shape[0],) + (1,) * (part.dim() - 1)
            lengths = part.flatten(1).norm(dim=1).clamp_min(1e-12).reshape(rows)
            found.append(part / lengths * start.flatten(1).norm(dim=1).reshape(rows))
        return found

    def dot(self, a: Sequence[torch.Tensor], b: Sequence[torch.Tensor]) -> float:
        """Over all ranks' parts."""
        local = math.fsum(
            float((x.double() * y.double()).sum()) / replicas
            for x, y, replicas in zip(a, b, self._replicas, strict=True)
        )
        return float(self._trial.ranks.total([local])[0]) if self._trial.is_sharded else local

    def length(self, a: Sequence[torch.Tensor]) -> float:
        """Its Euclidean norm."""
        return math.sqrt(self.dot(a, a))

    def start_length(self) -> float:
        """That of the weights themselves."""
        return self.length(self._start)

    @torch.no_grad()
    def move(self, direction: Sequence[torch.Tensor], far: float) -> None:
        """Sets the weights to their start plus `far` along the direction."""
        reshard(self._trial.model)  # FSDP2's root keeps gathered parameters until a backward
        for parameter, start, part in zip(self.parameters, self._start, direction, strict=True):
            own(parameter).data.copy_(start + far * part)  # without autograd: a kept graph stays valid

    def gradient(self, batches: Sequence[Any]) -> Direction:
        """The mean gradient of the batches where the weights are now."""
        total = [torch.zeros_like(start) for start in self._start]
        for batch in batches:
            self._trial.repeat_noise()
            self._trial.backward(batch)
            for part, parameter in zip(total, self.parameters, strict=True):
                if parameter.grad is not None:
                    part += own(parameter.grad) / len(batches)
        return total

    def loss(self, batches: Sequence[Any]) -> float:
        """The mean loss of the batches where the weights are now."""
        found = []
        for batch in batches:
            self._trial.repeat_noise()
            found.append(self._trial.measure(batch))
        return math.fsum(found) / len(found)


def _cut(whole: torch.Tensor, parameter: Any) -> torch.Tensor:
    if getattr(parameter, "device_mesh", None) is None:
        return whole
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None).to_local()
