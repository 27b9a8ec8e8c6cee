"""Whether a loss that was calm has become restless, and no better for it.

Design
------
Batch noise is there from the start, and becomes smaller as the loss falls. A run whose steps became too large was calm
once: its scatter has grown since, in absolute terms, and its level is no lower than when it was last calm. (A loss that
starts to scatter because it has learned something is lower.) No regular swing is needed, so no certain number of rows
per swing.

Scatter is measured in two ways, each compared with its own past. The spread of a window around a straight line through
it sees slow waves. The median of absolute second differences sees swings from row to row and is blind to any trend.
Both rest on quartiles, so a few outliers count for nothing. A change of level is in two windows at most, which overlap
by half, and so no unrest, which lasts for `LASTING`.

The calm is known from few rows: one window of eight may be calm by luck. So what counts is the upper bound of its
scatter, which comes down as more windows are calm in a row. Windows get longer as the run does, so there are never more
than `CAPACITY`.
"""

import math
from collections.abc import Sequence
from statistics import fmean, median
from typing import NamedTuple

FIRST_BLOCKS = 4, 8
"""Rows of half a window at first: short ones for swings from row to row, longer ones for waves."""
CAPACITY = 32
LASTING = 3
IN_A_ROW = (1, 2, 4, 8)
"""Windows whose mean scatter is a calm."""
LUCK = 2.0
"""Share by which the scatter of one window may be low by luck; of several, less by the root of their number."""
SEARCHED = 8
"""Windows among which a single one may be taken for calm."""
NO_BETTER = 0.85
"""Share of its level at the calm below which a loss has improved."""
OVER = 0.5
"""Share of the amplitude needed below which it is calm again."""
IQR_TO_SIGMA = 1.0 / 1.349
BEND_TO_SIGMA = 1.4826 / math.sqrt(6.0)
"""Median of absolute second differences to the standard deviation of one value, if they are normal."""
LEAST = 1e-3
"""Share of its level below which a scatter counts as no smaller: rounding."""


class Window(NamedTuple):
    """Two blocks of values: the scatter in two measures, and the level."""

    spread: float
    jitter: float
    level: float


class Calm:
    """The least upper bound of one measure, by the number of windows that it lasted, and the last level within it."""

    def __init__(self) -> None:
        self._found = dict.fromkeys(IN_A_ROW, (math.inf, math.nan))

    def add(self, windows: Sequence[Window], measure: int) -> None:
        """Takes a run of windows up to some place, newest last."""
        for num in IN_A_ROW:
            if len(windows) < num:
                return
            bound = fmean(window[measure] for window in windows[-num:]) * (1.0 + LUCK / math.sqrt(num))
            least = min(bound, self._found[num][0])
            if windows[-1][measure] <= least:
                self._found[num] = least, windows[-1].level

    def least(self, num_windows: int) -> tuple[float, float]:
        """Bound and level; of many windows a single one is calm by chance, so the calm must have lasted."""
        return min(self._found[num] for num in IN_A_ROW if SEARCHED * num >= num_windows)


class Unrest:
    """Follows one run, in windows of several lengths."""

    def __init__(self, growth: float, amplitude: float) -> None:
        self._scales = [_Scale(size, growth, amplitude) for size in FIRST_BLOCKS]
        self.growth = 0.0
        """The scatter over the upper bound of the calmest one."""
        self.amplitude = 0.0
        """The scatter over the level."""

    @property
    def is_restless(self) -> bool:
        """Whether it lasts."""
        return any(scale.is_restless for scale in self._scales)

    def add(self, value: float) -> None:
        """Takes a value."""
        for scale in self._scales:
            if scale.add(value) and scale.is_restless:
                self.growth, self.amplitude = scale.growth, scale.amplitude


class _Scale:
    """Windows that are of one length at the start of the run."""

    def __init__(self, size: int, growth: float, amplitude: float) -> None:
        self._growth = growth
        self._amplitude = amplitude
        self._size = size
        self._before: list[float] = []
        self._block: list[float] = []
        self._windows: list[Window] = []
        self._calm = (Calm(), Calm())
        self.is_restless = False
        self.growth = 0.0
        self.amplitude = 0.0

    def add(self, value: float) -> bool:
        """Takes a value; whether there is a new verdict."""
        self._block.append(value)
        if len(self._block) < self._size:
            return False
        has_window = bool(self._before)
        if has_window:
            self._windows.append(window_of(self._before + self._block))
            self._judge()
        if len(self._windows) < CAPACITY:
            self._before, self._block = self._block, []
        else:
            self._widen()
        return has_window

    def _widen(self) -> None:
        """Neighbouring windows become one, of twice the rows; what was calm stays so."""
        pairs = zip(self._windows[::2], self._windows[1::2], strict=True)
        self._windows = [Window(*(fmean(values) for values in zip(*pair, strict=True))) for pair in pairs]
        self._before, self._block, self._size = self._before + self._block, [], 2 * self._size

    def _judge(self) -> None:
        windows = self._windows
        if len(windows) <= LASTING:
            return
        recent = windows[-LASTING:]
        grown = [self._grown(measure, recent) for measure in (0, 1)]
        self.growth, self.amplitude, share = max(grown)
        if self.is_restless:
            last = windows[-1]
            self.is_restless = last.spread > OVER * self._amplitude * abs(last.level)
            return
        self.is_restless = self.growth > self._growth and self.amplitude > self._amplitude and share > NO_BETTER

    def _grown(self, measure: int, recent: Sequence[Window]) -> tuple[float, float, float]:
        """Growth in one measure; spread as a share of the level; the level over that of the calm."""
        calm = self._calm[measure]
        calm.add(self._windows[:-LASTING], measure)
        bound, calm_level = calm.least(len(self._windows) - LASTING)
        scatter, level = min(window[measure] for window in recent), fmean(window.level for window in recent)
        size = max(abs(level), 1e-300)
        share = 1.0 + (level - calm_level) / max(abs(calm_level), 1e-300)
        return scatter / max(bound, LEAST * size), min(window.spread for window in recent) / size, share


def window_of(values: Sequence[float]) -> Window:
    """The scatter of these values around a line through the medians of the first and the last third."""
    third = len(values) // 3
    slope = (median(values[-third:]) - median(values[:third])) / (len(values) - third)
    rest = sorted(value - slope * i for i, value in enumerate(values))
    quarter = len(rest) // 4
    low, high = (rest[quarter - 1] + rest[quarter]) / 2, (rest[-quarter - 1] + rest[-quarter]) / 2
    bends = [abs(a - 2.0 * b + c) for a, b, c in zip(values, values[1:], values[2:], strict=False)]
    return Window(IQR_TO_SIGMA * (high - low), BEND_TO_SIGMA * median(bends), fmean(values))
