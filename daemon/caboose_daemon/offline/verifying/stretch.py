"""A stretch of a curve: a robust line through it, how much it scatters, and how long its noise remembers.

Design
------
A training curve breaks each assumption of the textbook's comparison of two means: it has a trend, single steps lie far
off, and neighbouring steps are alike, so that a thousand of them say as much as fifty independent ones. So:

- The line is Theil and Sen's (the median of all slopes) over at most `MAX_POINTS` short averages. A quarter of the
  values may be anywhere without moving it far.
- Values further than `CLIP` scales from it are pulled in to there before anything is averaged.
- Noise is what is left beside a cubic curve, since a loss that bends does not wander.
- The integrated autocorrelation time says how many steps count for one: the likeness of values at all distances, summed
  in pairs until one is not positive (Geyer's rule). A fit hides the slowest part of it, so it is never taken for
  less than what the likeness of neighbours alone calls for, corrected for the fit as Kendall does.

Every error below is that of `num / memory` independent values, with as many degrees of freedom for Student's t.
"""

import math
import sys
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
MAX_POINTS = 100
CLIP = 4.0
TO_SIGMA = 1.4826
"""Median absolute deviation to standard deviation, for a normal distribution."""
FITTED = 4
"""Parameters of the cubic curve that is taken out before the noise is measured."""
LEAST = 1e-9
"""Of the level: a curve that is smoother than this has no noise to speak of."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A curve between two steps, reduced to a line."""

    num: int
    memory: float
    """Steps that count for one; 1 where each says something new."""
    scatter: float
    """Standard deviation of the noise, outliers pulled in."""
    middle: float
    """The mean step."""
    spread: float
    """The sum of squared distances of the steps from it."""
    level: float
    """The mean of the values, outliers pulled in."""
    slope: float
    """Per step."""
    last_level: float
    """The mean of the last third: where the curve stood at the end, if it went no further."""

    @property
    def num_independent(self) -> float:
        """As many independent values would say as much."""
        return self.num / self.memory

    def remembering(self, memory: float) -> "Stretch":
        """The same with noise of this memory."""
        return replace(self, memory=memory)

    @property
    def slope_error(self) -> float:
        """Standard error of the slope."""
        return self.scatter * math.sqrt(self.memory / self.spread)

    @property
    def level_error(self) -> float:
        """Standard error of the level."""
        return self.scatter / math.sqrt(self.num_independent)

    @property
    def last_error(self) -> float:
        """Standard error of the level of the last third."""
        return self.scatter / math.sqrt(self.num_independent / 3)

    def at(self, step: float) -> float:
        """Where the line leads at a step."""
        return self.level + self.slope * (step - self.middle)

    def error_at(self, step: float) -> float:
        """Standard error of the line at a step."""
        return math.hypot(self.level_error, self.slope_error * (step - self.middle))


def measure(steps: Floats, values: Floats) -> Stretch:
    """The stretch that these values make; all are finite, and there are at least ten."""
    slope, offset = _line(steps, values)
    rest = values - offset - slope * steps
    least = LEAST * float(np.median(np.abs(values))) + sys.float_info.min
    scale = max(TO_SIGMA * float(np.median(np.abs(rest))), least)
    calm = offset + slope * steps + np.clip(rest, -CLIP * scale, CLIP * scale)
    middle = float(steps.mean())
    spread = float(((steps - middle) ** 2).sum())
    fitted = float(((steps - middle) * calm).sum() / spread)
    level = float(calm.mean())
    left = _noise(steps - middle, calm)
    noise = float(np.sqrt((left**2).sum() / (len(left) - FITTED)))
    return Stretch(
        num=len(values),
        memory=_memory(left) if noise > least else 1.0,
        scatter=max(noise, least),
        middle=middle,
        spread=spread,
        level=level,
        slope=fitted,
        last_level=float(calm[-(len(calm) // 3) :].mean()),
    )


def _line(steps: Floats, values: Floats) -> tuple[float, float]:
    """Slope and offset by the median of all slopes."""
    parts = min(MAX_POINTS, len(values))
    edges = np.linspace(0, len(values), parts + 1).astype(int)[:-1]
    counts = np.diff(np.append(edges, len(values)))
    x = np.add.reduceat(steps, edges) / counts
    y = np.array([np.median(part) for part in np.split(values, edges[1:])])
    first, second = np.triu_indices(parts, 1)
    width = x[second] - x[first]
    slope = float(np.median((y[second] - y[first])[width > 0] / width[width > 0])) if (width > 0).any() else 0.0
    return slope, float(np.median(values - slope * steps))


def _noise(steps: Floats, values: Floats) -> Floats:
    """What is left of the values beside a cubic curve: a curve that bends is not one that wanders."""
    scaled = steps / max(float(np.abs(steps).max()), 1.0)
    terms = np.vander(scaled, FITTED)
    found, *_ = np.linalg.lstsq(terms, values, rcond=None)
    return np.asarray(values - terms @ found, dtype=np.float64)


def _memory(left: Floats) -> float:
    """The integrated autocorrelation time, in values."""
    num = len(left)
    size = 1 << (2 * num - 1).bit_length()
    power = np.abs(np.fft.rfft(left, size)) ** 2
    products = np.fft.irfft(power, size)[:num]
    if products[0] <= 0:
        return 1.0
    likeness = products / products[0] * num / np.arange(num, 0, -1)
    time = 1.0
    for lag in range(1, num // 2 - 1, 2):
        two = float(likeness[lag] + likeness[lag + 1])
        if two <= 0:
            break
        time += 2 * two
    first = min(float(likeness[1]) + (1 + (FITTED + 2) * max(float(likeness[1]), 0.0)) / num, 0.999)
    return min(max(time, (1 + first) / (1 - first), 1.0), num)


def student(confidence: float, freedom: float) -> float:
    """How many errors a two-sided interval reaches, by Cornish and Fisher's expansion; within 1 % from 5 degrees on."""
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    nu = max(freedom, 3.0)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / nu ** (power + 1) for power, term in enumerate(terms))
