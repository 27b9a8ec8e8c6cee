"""A whole run's curve in a bounded number of buckets, and the trend of a part of it.

Design
------
A rule about trends needs the run from its first step, in constant memory. Values are averaged into buckets of equal
width; when there are `CAPACITY` of them, neighbours are joined and the width doubles. A run of a hundred steps is kept
in full, one of a million in 32 to 64 averages. A rule tests once per completed bucket, so less often as the run grows.

`trend` is a straight line through bucket averages. Its standard error comes from the scatter of the averages around the
line, which is valid whatever the noise of single steps.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

CAPACITY = 64


class Curve:
    """Bucket averages of a series, from its first value to now."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._sum = 0.0
        self._count = 0
        self.means: list[float] = []
        self.width = 1
        self.num_points = 0

    def add(self, value: float) -> bool:
        """Adds a value; whether it completed a bucket, so that there is something new to judge."""
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
    """A straight line through a part of a curve."""

    change: float
    """From the first value to the last, along the line."""
    error: float
    """Standard error of the change."""
    level: float
    """Mean of the values."""

    @property
    def relative(self) -> float:
        """The change over the absolute level."""
        return self.change / max(abs(self.level), 1e-12)

    @property
    def relative_error(self) -> float:
        return self.error / max(abs(self.level), 1e-12)

    def falls(self, sigmas: float = 2.0) -> bool:
        """Whether the fall exceeds its standard error by this factor."""
        return self.change < -sigmas * self.error

    def rises(self, sigmas: float = 2.0) -> bool:
        """Whether the rise exceeds its standard error by this factor."""
        return self.change > sigmas * self.error


def trend(values: Sequence[float]) -> Trend:
    """The least-squares line through at least three values."""
    num = len(values)
    middle = (num - 1) / 2
    level = math.fsum(values) / num
    spread = num * (num * num - 1) / 12
    slope = math.fsum((i - middle) * v for i, v in enumerate(values)) / spread
    rest = math.fsum((v - level - slope * (i - middle)) ** 2 for i, v in enumerate(values)) / max(1, num - 2)
    return Trend(change=slope * (num - 1), error=math.sqrt(rest / spread) * (num - 1), level=level)
