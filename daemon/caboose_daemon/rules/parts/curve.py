"""A whole run's curve in a bounded number of buckets, and the trend of a part of it.

Design
------
A rule about trends needs the run from its first step, in constant memory. Values are averaged into buckets of equal
width; when there are `CAPACITY` of them, neighbours are joined and the width doubles. A run of a hundred steps is kept
in full, one of a million in 32 to 64 averages. A rule tests once per completed bucket, so less often as the run grows.

`trend` is a straight line through bucket averages. Its standard error comes from the scatter of the averages around the
line, which is valid whatever the noise of single steps, as long as the averages do not depend on each other. Where a
few rows are all there is, each average is one row, and rows of a smoothed or wandering loss resemble their neighbours:
there are fewer independent observations than rows. `remembers` takes the correlation of neighbours into account.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

CAPACITY = 64
MIN_FOR_MEMORY = 8
MOST_MEMORY = 0.9
"""Correlation of neighbours beyond which a drift cannot be told from memory."""


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
    doubt: float = 1.0
    """Factor on the error where neighbouring values resemble each other."""

    @property
    def relative(self) -> float:
        """The change over the absolute level."""
        return self.change / max(abs(self.level), 1e-12)

    @property
    def relative_error(self) -> float:
        """How well the change is known, over the absolute level: doubt counts."""
        return self.doubt * self.error / max(abs(self.level), 1e-12)

    def falls(self, sigmas: float = 2.0) -> bool:
        """Whether the fall exceeds its standard error by this factor, doubt apart: what may fall is not flat."""
        return self.change < -sigmas * self.error

    def rises(self, sigmas: float = 2.0) -> bool:
        """Whether the rise exceeds its standard error by this factor."""
        return self.change > sigmas * self.error


def trend(values: Sequence[float], *, remembers: bool = False) -> Trend:
    """The least-squares line through at least three values; `remembers`: neighbours may resemble each other."""
    num = len(values)
    middle = (num - 1) / 2
    level = math.fsum(values) / num
    spread = num * (num * num - 1) / 12
    slope = math.fsum((i - middle) * v for i, v in enumerate(values)) / spread
    rests = [v - level - slope * (i - middle) for i, v in enumerate(values)]
    rest = math.fsum(r * r for r in rests) / max(1, num - 2)
    error = math.sqrt(rest / spread) * (num - 1)
    return Trend(slope * (num - 1), error, level, _memory(rests) if remembers else 1.0)


def _memory(rests: Sequence[float]) -> float:
    """The factor on a standard error by which neighbouring values resemble each other; 1 for independent ones.

    The correlation of few values around a fitted line is too low by about 4 / n.
    """
    power = math.fsum(r * r for r in rests)
    if len(rests) < MIN_FOR_MEMORY or power <= 0:
        return 1.0
    correlation = math.fsum(a * b for a, b in itertools.pairwise(rests)) / power + 4.0 / len(rests)
    correlation = min(MOST_MEMORY, max(0.0, correlation))
    return math.sqrt((1.0 + correlation) / (1.0 - correlation))


def memory_of_changes(values: Sequence[float]) -> float:
    """How much of its deviation each value keeps from the one before, whatever the trend: 0 to `MOST_MEMORY`.

    The changes of independent values alternate: their neighbours have a correlation of -0.5. Those of a wandering level
    have one near 0.
    """
    changes = [b - a for a, b in itertools.pairwise(values)]
    if len(changes) < MIN_FOR_MEMORY:
        return 0.0
    middle = math.fsum(changes) / len(changes)
    power = math.fsum((c - middle) ** 2 for c in changes)
    if power <= 0:
        return 0.0
    correlation = math.fsum((a - middle) * (b - middle) for a, b in itertools.pairwise(changes)) / power
    return min(MOST_MEMORY, max(0.0, 1.0 + 2.0 * correlation))
