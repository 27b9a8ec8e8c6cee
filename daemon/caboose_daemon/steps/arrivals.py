"""Which step every expected rank has reached, counted as their reports arrive.

Design
------
The lowest step is looked for again only when the last rank that stood there has left it, or when ranks have gone: once
per step and not per message, so that a report costs the same in a job of 16 ranks and of 16,384.
"""

from collections.abc import Set


class Arrivals:
    """How far each rank of an attempt has come."""

    def __init__(self) -> None:
        self._reached: dict[int, int] = {}
        self._gone: frozenset[int] = frozenset()
        self._is_counted = False
        self._lowest = -1
        self._num_lowest = 0
        """Ranks that have reached the lowest step and no later one."""
        self._num_counted = 0
        """Ranks that have reported and are not gone."""

    def add(self, rank: int, step: int) -> None:
        """A rank reports a step; it has then reached all before it."""
        before = self._reached.get(rank)
        if before is not None and step <= before:
            return
        self._reached[rank] = step
        if not self._is_counted or rank in self._gone:
            return
        if before is None:
            self._is_counted = False  # a rank's first report
        elif before == self._lowest:
            self._num_lowest -= 1
            self._is_counted = self._num_lowest > 0

    def watermark(self, gone: Set[int], num_expected: int) -> int:
        """The last step that every expected rank has reached; the last one of all if no rank is expected."""
        if not num_expected:
            return max(self._reached.values(), default=-1)
        if len(self._reached) < num_expected:
            return -1
        if len(gone) != len(self._gone) or gone != self._gone:
            self._gone, self._is_counted = frozenset(gone), False
        if not self._is_counted:
            self._count()
        return self._lowest if self._num_counted == num_expected else -1

    def _count(self) -> None:
        steps = [step for rank, step in self._reached.items() if rank not in self._gone]
        self._num_counted, self._lowest = len(steps), min(steps, default=-1)
        self._num_lowest = steps.count(self._lowest)
        self._is_counted = True
