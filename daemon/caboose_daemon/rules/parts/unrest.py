"""Whether a loss that was calm has become restless, and no better for it.

Design
------
Batch noise is there from the start, and becomes smaller as the loss falls. A run whose steps became too large was calm
once: its scatter has grown since, in absolute terms, and its level is no lower than when it was last calm. (A loss that
starts to scatter because it has learned something is lower.) No regular swing is needed, so no certain number of rows
per swing.

The scatter is the median of absolute second differences, which neither a trend nor a few outliers inflate, over the
last two blocks of `BLOCK` values. It is compared with the calmest one before. That must hold for `LASTING` blocks in a
row.
"""

import math
from statistics import median

BLOCK = 16
WIDE = 2
"""Blocks over which the scatter is taken."""
LASTING = 3
CALM = 2.0
"""Factor on the calmest scatter up to which a block is calm."""
TO_SIGMA = 1.4826 / 6.0**0.5
"""Median of absolute second differences to the standard deviation of one value, if they are normal."""
LEAST = 1e-3
"""Share of its level below which a scatter counts as no smaller: rounding."""


class Unrest:
    """Follows one run."""

    def __init__(self, growth: float, amplitude: float) -> None:
        self._growth = growth
        self._amplitude = amplitude
        self._last: list[float] = []
        self._bends: list[list[float]] = [[]]
        self._values: list[list[float]] = [[]]
        self._scatters: list[tuple[float, float]] = []
        """Scatter and level of the last blocks, those that overlap with the present one."""
        self._calmest = math.inf
        """The least scatter before those."""
        self._calm_level = math.nan
        """The level when it was last about as calm as that."""
        self._num_restless = 0
        self.growth = 0.0
        """The scatter over the calmest one."""
        self.amplitude = 0.0
        """The scatter over the level."""

    @property
    def is_restless(self) -> bool:
        """Whether it lasts."""
        return self._num_restless >= LASTING

    def add(self, value: float) -> bool:
        """Takes a value; whether there is a new verdict."""
        last = self._last
        if len(last) < 2:
            last.append(value)
            return False
        self._bends[-1].append(abs(last[0] - 2.0 * last[1] + value))
        self._values[-1].append(value)
        self._last = [last[1], value]
        if len(self._bends[-1]) < BLOCK:
            return False
        if len(self._bends) == WIDE:
            self._judge()
            del self._bends[0], self._values[0]
        self._bends.append([])
        self._values.append([])
        return True

    def _judge(self) -> None:
        scatter = TO_SIGMA * median(bend for block in self._bends for bend in block)
        level = median(value for block in self._values for value in block)
        self.amplitude = scatter / max(abs(level), 1e-300)
        self._scatters.append((scatter, level))
        if len(self._scatters) > WIDE:
            before, level_before = self._scatters.pop(0)
            self._calmest = min(self._calmest, before)
            if before <= CALM * self._calmest:
                self._calm_level = level_before
        if math.isnan(self._calm_level):
            return
        self.growth = scatter / max(self._calmest, LEAST * abs(level), 1e-300)
        is_restless = self.growth > self._growth and self.amplitude > self._amplitude and level >= self._calm_level
        self._num_restless = self._num_restless + 1 if is_restless else 0
