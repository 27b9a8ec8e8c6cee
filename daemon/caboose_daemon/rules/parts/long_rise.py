"""Whether a loss has risen over a good part of its run, however slowly.

Design
------
A rise of one percent at a time is lost in any test of single steps, and in a log of twenty points there is no long
baseline to leave. So the whole run is a curve of averages (see `curve`). It has risen where the last three are above
the best three by a share of the level *and* far beyond the scatter of neighbouring averages, where that best is a good
part of the run ago, and where the loss is not on its way back. The scatter is the median of the averages' second
differences: no trend inflates it. A level that wanders has small ones and strays far; how far follows from how much
neighbouring averages resemble each other. The best of many levels is low by chance alone, the lower the more there are:
the rise must exceed zero by what the lowest of so many normal values is expected to be below them as well.

The test is made once per completed average. Rows of a log are usually averages over many steps, and are enough in small
numbers; steps of a live run are not.
"""

import math
from dataclasses import dataclass
from statistics import median

from caboose_daemon.rules.parts.curve import Curve, memory_of_changes, trend

WIDE = 3
"""Averages whose median is a level: a single outlier is none."""
TO_SIGMA = 1.4826 / math.sqrt(6.0)
"""Median of absolute second differences to the standard deviation of one value, if they are normal."""
SURE = 4.0
"""Standard errors of the difference of two levels by which a rise must exceed zero."""
MIN_MEANS = 12
LASTING = 1.0 / 3.0
"""Share of the run since its best level."""
STAYS = 0.8
"""Share of the highest rise below which the loss is on its way back."""


@dataclass(frozen=True, slots=True)
class Risen:
    """A rise that lasts: from the best level to the present one, and how many values ago the best one was."""

    best: float
    level: float
    num_since: int


class LongRise:
    """Follows one run."""

    def __init__(self) -> None:
        self._curve = Curve()
        self.found: Risen | None = None
        """The rise, as of the last completed average."""

    def add(self, value: float, min_points: int) -> bool:
        """Takes a value; whether there is a new verdict. Nothing is found in fewer than `min_points` values."""
        if not self._curve.add(value):
            return False
        means = self._curve.means
        if self._curve.num_points >= min_points and len(means) >= MIN_MEANS:
            self.found = self._judge(means)
        return True

    def _judge(self, means: list[float]) -> Risen | None:
        levels = [median(means[i : i + WIDE]) for i in range(len(means) - WIDE + 1)]
        place = min(range(len(levels)), key=levels.__getitem__)
        num_since = len(levels) - 1 - place
        if num_since < LASTING * len(levels):
            return None
        best, level, peak = levels[place], levels[-1], max(levels[place:])
        error = _error(means)
        is_back = level - best < STAYS * (peak - best)
        sure = SURE + math.sqrt(math.log(len(levels) / WIDE))
        if is_back or level - best < sure * error or trend(means[-max(WIDE, num_since // 2) :]).falls(SURE / 2):
            return None
        return Risen(best, level, num_since * self._curve.width)


def _error(means: list[float]) -> float:
    """Standard error of the difference of two levels, each a median of three averages."""
    memory = memory_of_changes(means)
    bends = [abs(a - 2 * b + c) for a, b, c in zip(means, means[1:], means[2:], strict=False)]
    sigma = TO_SIGMA * median(bends) / math.sqrt(1.0 - 4.0 / 3.0 * memory + memory * memory / 3.0)
    return sigma * math.sqrt(2.0 * (3.0 + 4.0 * memory + 2.0 * memory * memory)) / WIDE
