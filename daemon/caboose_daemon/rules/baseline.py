"""A robust online estimate of where a series lies and how much it scatters, constant in time and memory.

Design
------
The level follows the series with an exponential memory. Downwards it follows as it is: a loss that falls fast is no
outlier. Upwards each value moves it by no more than `CLIP` scales, so an outlier cannot pull it far.

The scatter is taken twice, and the larger counts: from the differences of neighbours, which a trend does not inflate (a
run's first fall would otherwise blind the baseline for hundreds of steps), and from the excess over the level, which
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
        self._jitter = float("nan")
        self._excess = 0.0
        self.level = float("nan")
        self.scale = float("nan")
        self.tail = NORMAL_TAIL

    @property
    def is_ready(self) -> bool:
        """Whether enough was seen to judge by."""
        return len(self._first) >= self._warmup

    def learn(self, value: float) -> None:
        """Takes a value into the baseline."""
        if self.is_ready:
            self._follow(value)
        else:
            self._first.append(value)
            if len(self._first) == self._warmup:
                self._begin()
        self._last = value

    def excess(self, value: float) -> float:
        """By how many scales a value lies above the level."""
        return (value - self.level) / self.scale

    def _begin(self) -> None:
        self.level = median(self._first[-5:])
        jumps = [abs(b - a) for a, b in zip(self._first, self._first[1:], strict=False)] or [0.0]
        self._jitter = fmean(jumps) / math.sqrt(2) * TO_SIGMA
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
        jump = abs(value - self._last) / 1.4142135623730951
        self._jitter += self._rate * ((jump if jump < most else most) * TO_SIGMA - self._jitter)
        self._set_scale()

    def _set_scale(self) -> None:
        self.scale = max(self._jitter, self._excess, abs(self.level) * 1e-3, 1e-12)
