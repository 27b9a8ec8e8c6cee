"""A robust online estimate of a series' level, scatter and tail, constant in time and memory.

Design
------
The level is an exponential average. Downwards it follows every value in full: a loss that falls fast is no outlier, and
when the last `BELOW` values are all under the level, the level drops to the highest of them. Upwards one value moves it
by at most `CLIP` scales, so an outlier cannot pull it far.

The scatter is estimated in two ways and the larger one counts: from second differences, which neither a trend nor the
first fall of a run inflates (that would blind the baseline for hundreds of steps), and from the excess over the level,
which sees slow wandering that differences miss. The caller decides which values to learn from. Sorting a window at
every step would cost more and see no more.

The tail is how far one value in a hundred reaches above the level, in scales. Some losses have outliers in normal
operation: six scales are rare in one run and common in another, so the tail is learned from the run itself.
"""

import math
from statistics import fmean, median

WARMUP = 20
MEMORY = 32.0
CLIP = 2.5
BELOW = 8
TO_ONE = math.sqrt(6)
"""A second difference of independent values scatters this much more than one of them."""
TO_SIGMA = 1.2533
"""Mean absolute deviation to standard deviation, for a normal distribution."""
TAIL_SHARE = 0.01
TAIL_RATE = 0.25
NORMAL_TAIL = 2.33
"""What one normal value in a hundred exceeds, in scales; the tail is never taken to be lighter."""


class Baseline:
    """Level, scale and tail of a series."""

    def __init__(self, warmup: int = WARMUP, memory: float = MEMORY) -> None:
        self._first: list[float] = []
        self._warmup = warmup
        self._rate = 1.0 / memory
        self._last = float("nan")
        self._last_jump = float("nan")
        self._num_below = 0
        self._highest_below = -math.inf
        self._jitter = float("nan")
        self._excess = 0.0
        self.is_ready = False
        """Whether enough values were learned to judge by."""
        self.level = float("nan")
        self.scale = float("nan")
        self.tail = NORMAL_TAIL

    def learn(self, value: float) -> None:
        if self.is_ready:
            self._follow(value)
        else:
            self._first.append(value)
            if len(self._first) == self._warmup:
                self._begin()
        self._last_jump = value - self._last
        self._last = value

    def excess(self, value: float) -> float:
        """By how many scales a value is above the level."""
        return (value - self.level) / self.scale

    def _begin(self) -> None:
        self.is_ready = True
        self.level = median(self._first[-5:])
        half = self._first[len(self._first) // 2 :]  # the first values of a run fall like no later ones
        bends = [abs(a - 2 * b + c) for a, b, c in zip(half, half[1:], half[2:], strict=False)] or [0.0]
        self._jitter = fmean(bends) / TO_ONE * TO_SIGMA
        self._set_scale()

    def _follow(self, value: float) -> None:
        above = value - self.level
        is_beyond = above > self.tail * self.scale
        self.tail *= 1.0 + TAIL_RATE * ((1.0 - TAIL_SHARE) if is_beyond else -TAIL_SHARE)
        if self.tail < NORMAL_TAIL:
            self.tail = NORMAL_TAIL
        most = CLIP * self.scale
        self.level += self._rate * (above if above < most else most)
        above = value - self.level
        if above > 0:
            self._excess += self._rate * ((above if above < most else most) * TO_SIGMA - self._excess)
        bend = abs(value - self._last - self._last_jump) / TO_ONE
        self._jitter += self._rate * ((bend if bend < most else most) * TO_SIGMA - self._jitter)
        self._set_scale()
        if above >= 0:
            self._num_below, self._highest_below = 0, -math.inf
            return
        self._num_below += 1
        if value > self._highest_below:
            self._highest_below = value
        if self._num_below >= BELOW:
            self.level, self._num_below, self._highest_below = self._highest_below, 0, -math.inf

    def _set_scale(self) -> None:
        scale = self._jitter if self._jitter > self._excess else self._excess  # called at every step of several rules
        least = abs(self.level) * 1e-3
        self.scale = scale if scale > least and scale > 1e-12 else max(least, 1e-12)
