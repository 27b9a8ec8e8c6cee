"""Divides the work on replicated layers among the ranks, and rotates it.

Design
------
After the all-reduce every rank of a replicated model holds the same gradients, so each layer needs to be looked at
by one rank only. The layer table is cut into as many contiguous parts of about equal size as there are ranks; in
each step each rank takes another part. A report says by its slice which layers it covers, so the daemon needs to
know nothing of this, and a rank that falls silent leaves a hole that moves, not one layer that is never seen.
"""

import itertools
from collections.abc import Sequence

MAX_PARTS = 1024


def cut(sizes: Sequence[int], parts: int) -> list[tuple[int, int]]:
    """Contiguous ranges of about equal total size that cover everything; some may be empty."""
    parts = max(1, min(parts, MAX_PARTS))
    total = sum(sizes)
    bounds = [0]
    running = 0
    for row, size in enumerate(sizes):
        # Close the part once its share is reached, taking this row with it if most of it still belongs there.
        while len(bounds) < parts and running + size / 2 > total * len(bounds) / parts:
            bounds.append(row)
        running += size
    bounds += [len(sizes)] * (parts + 1 - len(bounds))
    return list(itertools.pairwise(bounds))


class Division:
    """Which layers this rank looks at in a step."""

    def __init__(self, sizes: Sequence[int], rank: int, world: int, *, is_divided: bool) -> None:
        self._parts = cut(sizes, world) if is_divided else [(0, len(sizes))]
        self._rank = rank

    def part(self, step: int) -> tuple[int, int]:
        """The range of rows that is this rank's in this step."""
        return self._parts[(self._rank + step) % len(self._parts)]
