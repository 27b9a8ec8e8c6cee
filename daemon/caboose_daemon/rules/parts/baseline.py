"""A robust online estimate of where a series lies and how much it scatters, constant in time and memory.

Design
------
The level follows the series with an exponential memory. Downwards it follows as it is: a loss that falls fast is no
outlier; and a level that the last `BELOW` values all lie under is out of date, and drops to the highest of them.
Upwards each value moves it by no more than `CLIP` scales, so an outlier cannot pull it far.

The scatter is taken twice, and the larger counts: from second differences, which neither a trend nor a run's first
fall inflates (it would otherwise blind the baseline for hundreds of steps), and from the excess over the level, which
slow wandering cannot hide from as it does in differences. The caller decides what to learn from; sorting a window
at every step would cost more and not see more.

How far the series reaches above its level now and then is learned as well (`tail`, in scales: what one value in a
hundred exceeds). Some losses have outliers as a part of normal life; six scales are rare in one run and daily in
another, and only the run itself can tell.
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
        """Whether enough was seen to judge by."""
        self.level = float("nan")
        self.scale = float("nan")
        self.tail = NORMAL_TAIL

    def learn(self, value: float) -> None:
        """Takes a value into the baseline."""
        if self.is_ready:
            self._follow(value)
        else:
            self._first.append(value)
            if len(self._first) == self._warmup:
                self._begin()
        self._last_jump = value - self._last
        self._last = value

    def excess(self, value: float) -> float:
        """By how many scales a value lies above the level."""
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
