"""A robust online estimate of where a series lies and how much it scatters, constant in time and memory.

Design
------
The first `WARMUP` values give median and mean absolute deviation. After that both follow the series with an
exponential memory, but each new value moves them by no more than `CLIP` scales, so one outlier cannot pull them
far. The caller decides what to learn from (see `loss_spike`); sorting a window at every step would cost more and
not see more.
"""

from statistics import fmean, median

WARMUP = 20
MEMORY = 32.0
CLIP = 2.5
TO_SIGMA = 1.2533
"""Mean absolute deviation to standard deviation, for a normal distribution."""


class Baseline:
    """Level and scale of a series."""

    def __init__(self, warmup: int = WARMUP, memory: float = MEMORY) -> None:
        self._first: list[float] = []
        self._warmup = warmup
        self._rate = 1.0 / memory
        self.level = float("nan")
        self.scale = float("nan")

    @property
    def is_ready(self) -> bool:
        """Whether enough was seen to judge by."""
        return len(self._first) >= self._warmup

    def learn(self, value: float) -> None:
        """Takes a value into the baseline."""
        if not self.is_ready:
            self._first.append(value)
            if len(self._first) == self._warmup:
                self.level = median(self._first)
                spread = fmean(abs(v - self.level) for v in self._first) * TO_SIGMA
                self.scale = max(spread, self._floor())
            return
        deviation = max(-CLIP, min(CLIP, (value - self.level) / self.scale))
        self.level += self._rate * deviation * self.scale
        self.scale += self._rate * (abs(deviation) * TO_SIGMA - 1.0) * self.scale
        self.scale = max(self.scale, self._floor())

    def excess(self, value: float) -> float:
        """By how many scales a value lies above the level."""
        return (value - self.level) / self.scale

    def _floor(self) -> float:
        return max(abs(self.level) * 1e-3, 1e-12)
