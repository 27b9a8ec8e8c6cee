"""Finds the samples of a batch that make it bad, by running parts of it.

Design
------
A sample is at fault only if another one is not: a part that runs alone without a bad result is needed as evidence.
Halves are run first. If everything that was run is bad, single samples all over the batch are run as long as there are
runs left; if those are bad as well, no sample is named, since the reason is not in the samples.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

MAX_RUNS = 24
NUM_PROBES = 8
"""Runs kept for single samples all over the batch."""
MAX_FOUND = 4


def part_of(tree: Any, rows: range, num_samples: int) -> Any:
    """These samples of every tensor whose first dimension is the batch's; the rest unchanged."""
    if isinstance(tree, torch.Tensor):
        is_whole = tree.dim() > 0 and tree.shape[0] == num_samples
        return tree[rows.start : rows.stop] if is_whole else tree
    if isinstance(tree, Mapping):
        return {key: part_of(value, rows, num_samples) for key, value in tree.items()}
    if type(tree) in (tuple, list):
        return type(tree)([part_of(value, rows, num_samples) for value in tree])
    return tree


def search(is_bad: Callable[[range], bool | None], num_samples: int) -> tuple[int, ...]:
    """The first bad samples, by halves; empty if parts cannot be run, are bad only together, or if none is good.

    `is_bad` runs some samples and returns whether the result is bad; None ends the search (it failed, or time is up).
    """
    tried = _Tried(is_bad)
    found: list[int] = []
    open_parts = [range(num_samples)]
    while open_parts and len(found) < MAX_FOUND:
        part = open_parts.pop(0)
        if len(part) == 1:
            found.append(part.start)
            continue
        middle = part.start + len(part) // 2
        for half in (range(part.start, middle), range(middle, part.stop)):
            if not tried.has_runs(MAX_RUNS if tried.has_good else MAX_RUNS - NUM_PROBES):
                break
            if tried.run(half):
                open_parts.insert(0, half)
    if found and not tried.has_good:
        _probe(tried, num_samples, found)
    return tuple(sorted(found)) if tried.has_good else ()


class _Tried:
    """The parts that were run."""

    def __init__(self, is_bad: Callable[[range], bool | None]) -> None:
        self._is_bad = is_bad
        self._num_runs = 0
        self._is_over = False
        self.has_good = False
        """Whether a part had no bad result."""

    def has_runs(self, limit: int) -> bool:
        return not self._is_over and self._num_runs < limit

    def run(self, part: range) -> bool:
        """Whether it is bad; False where that is not known."""
        self._num_runs += 1
        answer = self._is_bad(part)
        self._is_over = answer is None
        self.has_good |= answer is False
        return bool(answer)


def _probe(tried: _Tried, num_samples: int, found: list[int]) -> None:
    """Runs single samples, evenly over the batch, until one is good."""
    places = range(0, num_samples, max(1, num_samples // NUM_PROBES))
    for place in (place for place in places if place not in found):
        if tried.has_good or not tried.has_runs(MAX_RUNS):
            return
        tried.run(range(place, place + 1))
