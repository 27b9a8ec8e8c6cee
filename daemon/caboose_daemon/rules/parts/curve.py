"""A whole run's curve in a bounded number of buckets, and whether it still goes anywhere.

Design
------
A rule about trends needs the run from its first step on, in constant memory. Values are averaged into buckets of equal
width; when there are `CAPACITY` of them, neighbours are joined and the width doubles. So a run of a hundred steps is
kept as it is, one of a million in 32 to 64 averages, and what a rule tests over them is tested once per bucket: less
and less often, as the run grows.

`trend` is a straight line through bucket averages. Its uncertainty comes from the averages' own scatter around the
line, which holds whatever the noise of the single steps is like.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

CAPACITY = 64


class Curve:
    """The averages of a series, from its beginning to now."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._sum = 0.0
        self._count = 0
        self.means: list[float] = []
        self.width = 1
        self.num_points = 0

    def add(self, value: float) -> bool:
        """Takes a value; whether it completed a bucket, so that there is something new to judge."""
        self._sum += value
        self._count += 1
        self.num_points += 1
        if self._count < self.width:
            return False
        self.means.append(self._sum / self._count)
        self._sum, self._count = 0.0, 0
        if len(self.means) >= self._capacity:
            self.means = [(a + b) / 2 for a, b in zip(self.means[::2], self.means[1::2], strict=True)]
            self.width *= 2
        return True


@dataclass(frozen=True, slots=True)
class Trend:
    """A straight line through a stretch of a curve."""

    change: float
    """From the stretch's beginning to its end, along the line."""
    error: float
    """Standard error of the change."""
    level: float
    """Mean of the stretch."""

    @property
    def relative(self) -> float:
        """The change as a share of the level's size."""
        return self.change / max(abs(self.level), 1e-12)

    @property
    def relative_error(self) -> float:
        """The error of that share."""
        return self.error / max(abs(self.level), 1e-12)

    def falls(self, sigmas: float = 2.0) -> bool:
        """Whether it surely goes down."""
        return self.change < -sigmas * self.error

    def rises(self, sigmas: float = 2.0) -> bool:
        """Whether it surely goes up."""
        return self.change > sigmas * self.error


def trend(values: Sequence[float]) -> Trend:
    """The line through at least three values."""
    num = len(values)
    middle = (num - 1) / 2
    level = math.fsum(values) / num
    spread = num * (num * num - 1) / 12
    slope = math.fsum((i - middle) * v for i, v in enumerate(values)) / spread
    rest = math.fsum((v - level - slope * (i - middle)) ** 2 for i, v in enumerate(values)) / max(1, num - 2)
    return Trend(change=slope * (num - 1), error=math.sqrt(rest / spread) * (num - 1), level=level)
