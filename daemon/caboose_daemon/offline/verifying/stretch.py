"""A range of a curve: a robust line through it, its scatter, and the correlation time of its noise.

Design
------
A training curve breaks every assumption of the textbook comparison of two means: it has a trend, it has outliers, and
neighbouring steps are correlated, so a thousand of them may count as fifty independent ones. So:

- The line is the Theil-Sen estimator (the median of all slopes) over at most `MAX_POINTS` short averages. A quarter of
  the values may be outliers without moving it far.
- Values further than `CLIP` scales from it are clipped before averaging.
- Noise is the residual of a cubic fit, since a bend is not noise.
- The integrated autocorrelation time is the number of steps that count as one: autocorrelations summed in pairs until a
  pair is not positive (Geyer's rule). A fit hides its slowest part, so it is at least what the first autocorrelation
  alone implies, with Kendall's correction for the fit.

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
"""Parameters of the cubic fit that is subtracted before measuring noise."""
LEAST = 1e-9
"""Noise below this share of the level counts as none."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A curve between two steps, reduced to a line."""

    num: int
    memory: float
    """Correlation time: steps that count as one; 1 if independent."""
    scatter: float
    """Standard deviation of the noise, outliers clipped."""
    middle: float
    """The mean step."""
    spread: float
    """The sum of squared distances of the steps from it."""
    level: float
    """The mean of the values, outliers clipped."""
    slope: float
    """Per step."""
    last_level: float
    """The mean of the last third."""

    @property
    def num_independent(self) -> float:
        """Equivalent number of independent values."""
        return self.num / self.memory

    def remembering(self, memory: float) -> "Stretch":
        """The same with this correlation time."""
        return replace(self, memory=memory)

    @property
    def slope_error(self) -> float:
        return self.scatter * math.sqrt(self.memory / self.spread)

    @property
    def level_error(self) -> float:
        return self.scatter / math.sqrt(self.num_independent)

    @property
    def last_error(self) -> float:
        return self.scatter / math.sqrt(self.num_independent / 3)

    def at(self, step: float) -> float:
        """The line's value at a step."""
        return self.level + self.slope * (step - self.middle)

    def error_at(self, step: float) -> float:
        return math.hypot(self.level_error, self.slope_error * (step - self.middle))


def measure(steps: Floats, values: Floats) -> Stretch:
    """Measures these values; all are finite, and there are at least ten."""
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
    """Residuals of a cubic fit."""
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
    correlation = products / products[0] * num / np.arange(num, 0, -1)
    time = 1.0
    for lag in range(1, num // 2 - 1, 2):
        two = float(correlation[lag] + correlation[lag + 1])
        if two <= 0:
            break
        time += 2 * two
    first = min(float(correlation[1]) + (1 + (FITTED + 2) * max(float(correlation[1]), 0.0)) / num, 0.999)
    return min(max(time, (1 + first) / (1 - first), 1.0), num)


def student(confidence: float, freedom: float) -> float:
    """Student's t quantile of a two-sided interval (Cornish-Fisher expansion); within 1 % from 5 degrees of freedom."""
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    nu = max(freedom, 3.0)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / nu ** (power + 1) for power, term in enumerate(terms))
