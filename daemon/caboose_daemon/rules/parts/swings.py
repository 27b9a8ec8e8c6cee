"""Follows a curve and measures how much it swings beyond its noise: amplitude, correlation of neighbours, swings.

Design
------
The level is twice an average minus the average of that average, which follows any steady fall. Deviations are those of
the logarithm where the value is positive, so that swings over orders of magnitude count fully. Each is limited to a few
of its own scales: a single spike is no swing. They are compared with their neighbours in units of the recent scatter;
otherwise the first fall of the run, which is the steepest, would dominate.
"""

import math

LEVEL_MEMORY = 32.0
CLIP = 3.0
GROWN = 1.5
"""Recent scatter over that of all of the memory, above which swings grow; below its inverse they shrink."""


class Swings:
    """The swings of one curve."""

    def __init__(self, memory_steps: int) -> None:
        self._memory = memory_steps
        self._level: float | None = None
        self._slow = 0.0
        """The average of the level, which lags behind the level as much as the level behind the value."""
        self._is_positive = True
        self._num = 0
        self._last = 0.0
        self._variance = 0.0
        self._near = 0.0
        """The recent variance, by which a deviation is scaled before it is compared with the one before."""
        self._power = 0.0
        self._product = 0.0
        self._side = 0
        self.num_swings = 0.0
        """Crossings of the level and back, in the memory."""

    def follow(self, value: float) -> bool:
        """Follows one value; whether enough was seen to judge."""
        if value <= 0 and self._is_positive:
            self._is_positive, self._level = False, None  # no logarithm any more: start again on the linear scale
        value = math.log(value) if self._is_positive else value
        if self._level is None:
            self._level, self._slow, self._num = value, value, 0
            self._variance = self._near = self._power = self._product = self.num_swings = 0.0
        self._num += 1
        rate = 1.0 / min(self._num, self._memory)
        deviation = value - (2.0 * self._level - self._slow)
        share = max(1.0 / self._num, 1.0 / LEVEL_MEMORY)
        self._level += share * (value - self._level)
        self._slow += share * (self._level - self._slow)
        if self._num > LEVEL_MEMORY:
            most = CLIP * math.sqrt(self._variance) if self._variance > 0 else abs(deviation)
            deviation = max(-most, min(most, deviation))
        self._variance += rate * (deviation * deviation - self._variance)
        self._near += share * (deviation * deviation - self._near)
        scaled = deviation / math.sqrt(self._near) if self._near > 0 else 0.0
        self._power += rate * (scaled * scaled - self._power)
        self._product += rate * (scaled * self._last - self._product)
        self._last = scaled
        self.num_swings -= rate * self.num_swings
        side = 1 if deviation > 0.5 * math.sqrt(self._variance) else -1 if deviation < 0 else self._side
        if side != self._side:
            self._side = side
            self.num_swings += 0.5
        return self._num > self._memory

    @property
    def amplitude(self) -> float:
        """Standard deviation of the swings as a share of the level."""
        sigma = math.sqrt(self._variance)
        return sigma if self._is_positive else sigma / max(abs(self._level or 0.0), 1e-12)

    @property
    def correlation(self) -> float:
        """Of neighbouring deviations: near 0 for noise, below 0 where they alternate, above 0 for waves."""
        return self._product / self._power if self._power > 0 else 0.0

    @property
    def growth(self) -> float:
        """The recent scatter over that of all of the memory."""
        return math.sqrt(self._near / self._variance) if self._variance > 0 else 1.0

    @property
    def trend(self) -> str:
        """growing, steady or shrinking."""
        return "growing" if self.growth > GROWN else "shrinking" if self.growth < 1 / GROWN else "steady"
