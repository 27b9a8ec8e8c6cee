"""Whether a log falls, but in a straight line of a tiny rate: hundreds of times too slowly.

Design
------
A loss that learns bends: it falls fast at first, and slower later. One whose steps are far too small is still at the
beginning of that curve when its log ends, so it falls by the same amount for the same distance, where distance is the
sum of the learning rates (a schedule may fall to zero). Three signs are needed: a rate that hardly any run learns with,
a fall that is certain and small, and no bend. Each alone is usual: fine-tuning has such rates and bends; a long run
falls little over a part of it.

A loss that begins at ln 2 is left out: it is mostly one of preferences, where such rates are usual.
"""

import itertools
import math
from collections.abc import Sequence

from caboose_daemon.rules.parts.curve import Curve, Trend, trend
from caboose_daemon.steps.aligned import AlignedStep

MIN_ROWS = 200
CERTAIN = 6.0
"""Standard errors of the fall."""
LEAST, MOST = 0.01, 0.15
"""Fall over the whole log, as a share of its level."""
BENDS = 0.6
"""Pace of the later half over that of the first one, or the reverse, below which the curve bends."""
PREFERENCES = 0.03
"""Relative distance of a first loss from ln 2 within which it may be one of preferences."""


class Creeping:
    """The losses of a log over the distance that its learning rate has covered."""

    def __init__(self) -> None:
        self._losses, self._rates = Curve(), Curve()
        self._first = math.nan
        self._peak = 0.0

    @property
    def peak(self) -> float:
        """The highest learning rate so far."""
        return self._peak

    def follow(self, step: AlignedStep, loss: float) -> None:
        """One row with a loss; rows without a rate are left out."""
        if not step.lr or not math.isfinite(rate := max(step.lr)):
            return
        if not self._losses.num_points:
            self._first = loss
        self._peak = max(self._peak, rate)
        self._losses.add(loss)
        self._rates.add(rate)

    def line(self, highest_rate: float, num_in_all: float) -> Trend | None:
        """The line through a log of so many rows that creeps at rates up to this one, else None."""
        num = self._losses.num_points
        if num < MIN_ROWS or not 0.0 < self._peak <= highest_rate:
            return None
        if abs(self._first / math.log(2.0) - 1.0) < PREFERENCES:
            return None
        line = trend(self._losses.means, remembers=True)
        is_small = LEAST < -line.relative < MOST * num / max(num, num_in_all)
        if not is_small or -line.change < CERTAIN * line.doubt * line.error or self._bends():
            return None
        return line

    def summary(self, line: Trend) -> str:
        """What it says in words."""
        num = self._losses.num_points
        half = num / 2 / -line.relative
        half = round(half, 1 - int(math.log10(half)))
        fall = f"loss creeps: {-100 * line.relative:.2g} % in {num:,} rows, in a straight line"
        return f"{fall}, at learning rate {self._peak:.3g}; half of it would take about {half:,.0f} rows at this pace"

    def _bends(self) -> bool:
        covered = list(itertools.accumulate(self._rates.means))
        half = next(i for i, distance in enumerate(covered) if distance >= covered[-1] / 2)
        if not 3 <= half <= len(covered) - 3:
            return True
        early = _pace(covered[:half], self._losses.means[:half])
        late = _pace(covered[half:], self._losses.means[half:])
        return min(early, late) <= 0.0 or min(early, late) / max(early, late) < BENDS


def _pace(distances: Sequence[float], losses: Sequence[float]) -> float:
    """The fall per distance, by least squares."""
    middle, level = math.fsum(distances) / len(distances), math.fsum(losses) / len(losses)
    spread = math.fsum((x - middle) ** 2 for x in distances)
    if spread <= 0.0:
        return 0.0  # the rate is 0
    return -math.fsum((x - middle) * (y - level) for x, y in zip(distances, losses, strict=True)) / spread
