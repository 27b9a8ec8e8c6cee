"""What is still lost by waiting: the share of the run's progress that is lost at each future step, summed.

Design
------
The model. A step of training is worth the share of the run's progress that its weights still hold. The progress is the
fall of the loss from where the run began (or from chance, where that is lower) to the level it left. A loss that is so
much above its level has lost that share of it; a loss at or above the start has lost all, however fast it falls. So a
step at the share `s` loses `s` steps of training, and waiting loses the sum of the shares until the loss is back at
its level and on the trend that the level had.

The height is projected with what was measured of it: it falls by a constant share of itself at each step (a
relaxation), stays, or goes on rising in a straight line. The rate has a standard error, so there are three ends: the
likely one, and those of a rate two errors higher and lower.

A height that does not measurably fall has no way back that could be extrapolated. Two cases are weighed. The state may
*pass* by itself, as bad data do when they end. Such a disturbance lasts some steps, rarely very many: the probability
that it is longer than `n` steps is taken as `(1 + n / PASSING_STEPS) ** -2`, so half are over after 4 steps and 1 in 16
is longer than 30. Or it *persists*: the weights are damaged, a priori in `PERSISTS` of the cases, and half of the cases
if the loss goes on rising. Each step at which it did not pass is evidence for that. While there is a fair chance that
it passes with the next step, one more step of patience is cheap: see `hope`, and `cost` for how it is used.

The sum ends at the horizon: a run of unknown length is expected to last as long again as it has lasted.
"""

import math

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

ERRORS = 2.0
"""Standard errors between the likely rate and the two ends of its band."""
PASSING_STEPS = 10.0
"""Scale of the duration of a disturbance that passes by itself."""
PERSISTS = 0.05
"""Probability that a height which does not fall persists, before anything is known of its duration."""
PERSISTS_RISING = 0.5
"""The same for one that rises."""
POINTS = 96
MIN_HORIZON = 100.0


class Height(msgspec.Struct, frozen=True, kw_only=True):
    """A loss above its level, how it changes, and what it is compared with."""

    excess: float
    progress: float
    """Fall of the loss from the run's start to its level."""
    noise: float
    age: int
    """Steps since it left its level."""
    horizon: float
    """Expected remaining steps of the run."""
    rate: float = 0.0
    """Share of itself by which it falls at each step; 0 if it does not measurably fall."""
    error: float = 0.0
    """Standard error of the rate."""
    rise: float = 0.0
    """Loss by which it rises at each step; 0 if it does not."""


class Remaining(msgspec.Struct, frozen=True):
    """Steps of training still lost by waiting: the likely number, and the ends of its band."""

    likely: float
    least: float
    most: float
    hope: float = 0.0
    """Probability per step that the better of the cases that are weighed proves true."""
    then: float = 0.0
    """What waiting still loses in that case."""


def share(excess: Floats | float, progress: float) -> Floats:
    """Share of the run's progress that is lost at this height."""
    found: Floats = np.clip(np.asarray(excess, dtype=np.float64) / max(progress, 1e-300), 0.0, 1.0)
    return found


def horizon(step: int, total_steps: float | None = None) -> float:
    """Remaining steps of a run that has made so many; expected ones, if its length is not known."""
    if total_steps is not None and total_steps > step:
        return total_steps - step
    return max(MIN_HORIZON, float(step))


def project(height: Height) -> Remaining:
    """What waiting still loses."""
    if height.rate > 0.0:
        slow, fast = height.rate - ERRORS * height.error, height.rate + ERRORS * height.error
        ends = (_falling(height, rate) for rate in (height.rate, fast, max(0.0, slow)))
        return Remaining(*ends)
    ahead = _times(height.horizon)
    lost = share(height.excess + height.rise * ahead, height.progress)
    known = PASSING_STEPS + height.age
    passing = float(np.trapezoid(lost * (known / (known + ahead)) ** 2, ahead))
    persisting = float(np.trapezoid(lost, ahead))
    prior = PERSISTS_RISING if height.rise > 0.0 else PERSISTS
    weight = prior / (prior + (1.0 - prior) * (PASSING_STEPS / known) ** 2)
    likely = weight * persisting + (1.0 - weight) * passing
    return Remaining(likely, 0.0, persisting, hope=(1.0 - weight) * 2.0 / known)


def steps_back(height: Height) -> float:
    """Steps until a falling height is within the noise; infinity if it does not fall."""
    if height.rate <= 0.0:
        return math.inf
    return max(0.0, math.log(max(height.excess, 1e-300) / height.noise)) / height.rate


def path(height: Height, num: int, rate: float | None = None) -> Floats:
    """The projected heights of the next steps."""
    ahead = np.arange(1, num + 1, dtype=np.float64)
    rate = height.rate if rate is None else rate
    found: Floats = height.excess * np.exp(-rate * ahead) + height.rise * ahead
    return found


def _falling(height: Height, rate: float) -> float:
    """The sum of the shares of a height that falls at this rate, until it is within the noise."""
    if height.excess <= height.noise:
        return 0.0
    if rate <= 0.0:
        return float(share(height.excess, height.progress)) * height.horizon
    whole = max(0.0, math.log(height.excess / height.progress)) / rate if height.progress > 0 else math.inf
    if whole >= height.horizon:
        return height.horizon
    begin = min(height.excess, height.progress)
    until = min(height.horizon - whole, math.log(max(1.0, begin / height.noise)) / rate)
    return whole + begin / height.progress * -math.expm1(-rate * until) / rate


def _times(horizon: float) -> Floats:
    """Steps ahead, dense at first: the integrands change by their logarithm."""
    return np.concatenate([[0.0], np.geomspace(1.0, max(2.0, horizon), POINTS)])
