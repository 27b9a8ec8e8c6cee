"""Whether batches are sorted by class: each has far fewer classes than samples drawn at random would have.

Design
------
The purity of a batch is the chance that two of its samples have one class. Drawn at random it is that of all batches
together, plus what one sample contributes with itself. Batches are sorted where the purity is closer to 1 than to that.
"""

from collections.abc import Sequence

import torch

SORTED = 0.5
"""Share of the way from a random draw to batches of one class."""
MIN_SAMPLES = 4
"""Of a batch; smaller ones are pure by chance."""
MAX_CLASSES = 1024


def are_sorted(parts: Sequence[torch.Tensor]) -> bool:
    """Whether these whole-number targets, one tensor a batch, are sorted by class."""
    usable = [part.reshape(-1) for part in parts if part.numel() >= MIN_SAMPLES]
    if len(usable) < 2 or any(part.is_floating_point() for part in usable):
        return False
    whole = torch.cat(usable)
    if not 2 <= len(torch.unique(whole)) <= MAX_CLASSES:
        return False
    at_random = _purity(whole)
    excess = [
        (_purity(part) - at_random - (1 - at_random) / len(part)) / (1 - at_random) / (1 - 1 / len(part))
        for part in usable
    ]
    return sum(excess) / len(excess) > SORTED


def _purity(targets: torch.Tensor) -> float:
    counts = torch.unique(targets, return_counts=True)[1].double()
    return float((counts / counts.sum()).square().sum())
