"""The level of a noisy curve with its error, and the curve in buckets.

Design
------
Neighbouring losses are correlated, so the error of a mean over n of them is larger than their scatter over sqrt(n). The
range is cut into batches and the scatter of the batches' means is used: it is valid for correlated noise, and a slope
within the range increases it, as it should. Buckets are medians, so a spike is not a level.

If most of a range is not finite, or nothing finite follows, there is no level; earlier values are not used.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Steps = NDArray[np.int64]
MIN_ROWS = 20
TAIL = 0.05
NUM_BATCHES = 8
MAX_BUCKETS = 200
MIN_PER_BUCKET = 5
CLEAR_ERRORS = 3.0
"""Standard errors at which two levels differ clearly."""
MIN_SHARE = 0.005
"""Differences below this share of the level are ignored."""


@dataclass(frozen=True)
class Level:
    """A mean and its standard error."""

    value: float
    error: float

    def clearly_below(self, other: "Level") -> bool:
        """Whether it is below the other by more than noise."""
        apart = other.value - self.value
        least = MIN_SHARE * max(abs(self.value), abs(other.value))
        return apart > max(least, CLEAR_ERRORS * math.hypot(self.error, other.error))


def level_at(steps: Steps, values: Floats, step: int) -> Level | None:
    """The level over the last 5 % of the steps up to `step`, at least `MIN_ROWS` rows; None if there is none."""
    if broken_since(steps, values, step) is not None:
        return None
    part = values[_before(steps, step)]
    part = part[np.isfinite(part)]
    if not len(part):
        return None
    batches = [float(batch.mean()) for batch in np.array_split(part, min(NUM_BATCHES, max(1, len(part) // 3)))]
    error = float(np.std(batches, ddof=1)) / math.sqrt(len(batches)) if len(batches) > 1 else math.inf
    return Level(float(part.mean()), error)


def broken_since(steps: Steps, values: Floats, step: int) -> int | None:
    """The step from which the curve is mostly not finite, up to `step` or to its end; None if finite."""
    part = _before(steps, step)
    if part.stop <= part.start:
        return None
    is_bad = ~np.isfinite(values)
    if is_bad[part].mean() <= 0.5 and not is_bad[part.stop - 1 :].all():
        return None
    surplus = np.cumsum(np.where(is_bad[: part.stop], 1, -1)[::-1])[::-1]  # bad minus good rows, from each row on
    return int(steps[surplus.argmax()])


def _before(steps: Steps, step: int) -> slice:
    end = int(np.searchsorted(steps, step, side="right"))
    begin = int(np.searchsorted(steps, step - TAIL * step, side="left"))
    return slice(max(0, min(begin, end - MIN_ROWS)), end)


def course(steps: Steps, values: Floats) -> tuple[Steps, Floats]:
    """The curve in at most `MAX_BUCKETS` medians, each at the last step of its bucket."""
    num = min(MAX_BUCKETS, max(1, len(values) // MIN_PER_BUCKET))
    if not len(values):
        return steps, values
    ends = np.array([part[-1] for part in np.array_split(steps, num)], dtype=np.int64)
    return ends, np.array([float(np.median(part)) for part in np.array_split(values, num)])


def scatter(values: Floats) -> float | None:
    """The noise from row to row in the second half, as a share of the level; robust against spikes and slopes."""
    half = values[len(values) // 2 :]
    if len(half) < MIN_ROWS:
        return None
    noise = 1.4826 * float(np.median(np.abs(np.diff(half)))) / math.sqrt(2)
    middle = abs(float(np.median(half)))
    return noise / middle if middle else None
