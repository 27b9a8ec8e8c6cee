"""Where the training loss should be by now: a power law through the first part of the run, continued to its end.

Design
------
Losses that learn fall along `floor + height * (1 + step / scale) ** -power`. For each power and scale of a grid, floor
and height are a linear fit. Many of these curves fit the first part nearly equally well and differ at the end: all that
fit well enough are continued, and their range is the uncertainty. So a short or noisy run has a wide one, and nothing
is concluded from it. No law is exact: a quarter of the fall that is predicted after the fitted part is uncertain too.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
FITTED = 0.6
"""The part of the run that is fitted; the rest is predicted."""
POWERS = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0)
SCALES = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
"""As shares of the run."""
MIN_AVERAGES = 32
AVERAGES = 64
LAST = 0.1
"""The end that is compared."""
UNCERTAIN = 0.25
"""Share of the predicted fall that is added to the range."""
AS_GOOD = 4.0
"""Log-likelihood, doubled, by which a curve may be worse than the best and still count."""


@dataclass(frozen=True)
class Expected:
    """The level that the run should have reached, and the one that it has."""

    lowest: float
    highest: float
    measured: float
    error: float
    """Of the measured level."""

    @property
    def above(self) -> float:
        """How far the measured level is above the range, in its own errors; 0 within, negative below."""
        if self.measured > self.highest:
            return (self.measured - self.highest) / self.error
        return min(0.0, (self.measured - self.lowest) / self.error)


def expected(steps: NDArray[np.int64], losses: Floats) -> Expected | None:
    """The comparison; None for a curve of too few points, or one that no falling power law fits."""
    if len(losses) < 2 * MIN_AVERAGES:
        return None
    parts = np.array_split(np.arange(len(losses)), min(AVERAGES, len(losses) // 2))
    x = np.array([steps[part].mean() for part in parts], dtype=np.float64)
    y = np.array([losses[part].mean() for part in parts])
    x = (x - x[0]) / max(x[-1] - x[0], 1.0)
    fitted = x <= FITTED
    error = _noise(y)
    curves = [curve for power in POWERS for scale in SCALES if (curve := _fit(x, y, fitted, power, scale)) is not None]
    if not curves:
        return None
    best = min(left for left, _, _ in curves)
    variance = max(best / max(1, int(fitted.sum()) - 4), error**2)
    good = [curve for curve in curves if (curve[0] - best) / variance <= AS_GOOD]
    lowest = min(end - UNCERTAIN * fall for _, end, fall in good)
    highest = max(end + UNCERTAIN * fall for _, end, fall in good)
    end = y[x > 1 - LAST]
    least = 1e-12 + 1e-6 * abs(float(y[-1]))
    return Expected(lowest, highest, float(end.mean()), max(error / float(np.sqrt(len(end))), least))


def _fit(
    x: Floats, y: Floats, fitted: NDArray[np.bool_], power: float, scale: float
) -> tuple[float, float, float] | None:
    """The squares that are left, the level at the end, and the fall after the fitted part; None if it does not fall."""
    shape = (1 + x / scale) ** -power
    terms = np.stack([np.ones(int(fitted.sum())), shape[fitted]], axis=1)
    (floor, height), *_ = np.linalg.lstsq(terms, y[fitted], rcond=None)
    if height <= 0:
        return None
    if floor < 0 <= y.min():
        floor, height = 0.0, float((shape[fitted] * y[fitted]).sum() / (shape[fitted] ** 2).sum())
    left = float(((y[fitted] - floor - height * shape[fitted]) ** 2).sum())
    end = float(height * shape[x > 1 - LAST].mean())
    return left, float(floor) + end, float(height * shape[fitted][-1]) - end


def _noise(y: Floats) -> float:
    """The scatter of one average around a smooth curve: from second differences, whose trend is gone."""
    second = np.diff(y[len(y) // 4 :], 2)
    return float(1.4826 * np.median(np.abs(second)) / np.sqrt(6.0)) + 1e-9 * float(np.abs(y).max())
