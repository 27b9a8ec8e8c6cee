"""The level of a loss, when it left it, and the trend and the progress it had: what triage compares with.

Design
------
The *level* is the median of the last losses before the loss left it, the *noise* the scatter of single steps around
it. A slowly rising loss leaves its level before a rule can detect it. So the beginning is searched backwards, from
the rule's onset to the last step at which the smoothed loss was still at its best. Learning curves are close to
straight lines over the logarithm of the step: the fall that a loss had is measured so. An episode of a rule may stay
open while the loss is back on its level. If it leaves it again, the problem began there.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from caboose_daemon.rollback_state.progress import Progress
from caboose_daemon.steps.columns import StepSummary

Floats = NDArray[np.float64]

MIN_BEFORE = 8
"""Finite losses before the onset needed for a level."""
LEVEL_STEPS = 16
LOOK_BACK = 512
"""Steps before the onset in which the beginning of a slow rise is searched."""
SMOOTH = 9
MEDIAN = 1.2533
"""Standard error of a median relative to that of a mean, for normal values."""
AWAY = 6.0
"""Standard errors of the smoothed loss above its best at which it has left it."""
EDGE = 2.0
"""Noises above the level of single steps that belong to the way up."""
NOISE_STEPS = 64
SURE = 3.0
"""Standard errors at which a difference is significant."""


class LossLevel(msgspec.Struct, frozen=True):
    """The level of a loss and the scatter of single steps."""

    level: float
    noise: float
    num_steps: int

    def error(self, num: int) -> float:
        """Standard error of the median of that many steps."""
        return MEDIAN * self.noise / math.sqrt(max(1, num))


@dataclass(frozen=True)
class Losses:
    """The losses by step that led to the weights of one attempt; non-finite ones are NaN."""

    steps: NDArray[np.int64]
    values: Floats
    is_lost: NDArray[np.bool_]
    """True at steps where no rank had a finite loss."""

    @classmethod
    def of(cls, recent: Iterable[StepSummary], attempt: int, until: Mapping[int, int] | None = None) -> "Losses":
        """The losses of an attempt that are still in memory.

        `until` names earlier attempts that it continues, each with the last step of it that counts.
        """
        last = {**(until or {}), attempt: math.inf}
        rows = [
            (s.step, s.loss, s.loss_min is None)
            for s in recent
            if s.loss is not None and s.step <= last.get(s.attempt, -math.inf)
        ]
        values = np.array([loss for _, loss, _ in rows], dtype=np.float64)
        values[~np.isfinite(values)] = np.nan
        is_lost = np.array([is_lost for _, _, is_lost in rows], dtype=np.bool_) & np.isnan(values)
        return cls(np.array([step for step, _, _ in rows], dtype=np.int64), values, is_lost)

    @property
    def num_bad(self) -> int:
        """Consecutive latest losses that are not finite on any rank."""
        good = np.flatnonzero(~self.is_lost)
        return len(self.values) - (int(good[-1]) + 1 if len(good) else 0)


def level_of(values: Floats) -> LossLevel | None:
    """The level at the end of a series of losses; None if there are too few."""
    finite = values[np.isfinite(values)]
    if len(finite) < MIN_BEFORE:
        return None
    level = float(np.median(finite[-LEVEL_STEPS:]))
    window = finite[-NOISE_STEPS:]
    bends = np.abs(window[2:] - 2 * window[1:-1] + window[:-2]) / math.sqrt(6)
    # The median assumes a normal scatter; the 0.9 quantile covers heavy tails.
    noise = max(float(np.median(bends)) / 0.6745, float(np.quantile(bends, 0.9)) / 1.645)
    return LossLevel(level, max(noise, 1e-3 * abs(level), 1e-12), len(finite))


def progress(losses: Losses, began: int, before: LossLevel, start: float | None, peak: float) -> Progress:
    """Fall of the loss from where the run began to its level; `peak` is its height above that.

    A run that has hardly improved is measured by the size of its loss, one whose start was not seen at least by that.
    """
    if start is not None and start - before.level > SURE * before.noise:
        return Progress.known(start - before.level)
    values = losses.values[(losses.steps < began) & np.isfinite(losses.values)]
    highest = float(smoothed(values, SMOOTH).max()) if len(values) else before.level
    least = max(abs(before.level), highest - before.level, SURE * before.noise)
    return Progress.known(least) if start is not None else Progress.unknown(least, peak)


def fall(losses: Losses, began: int) -> float:
    """By how much the loss fell before the beginning while the step grew by a factor of e; 0 if not measurably."""
    has = (losses.steps < began) & np.isfinite(losses.values) & (losses.steps > 0)
    steps, values = losses.steps[has][-LOOK_BACK:], losses.values[has][-LOOK_BACK:]
    num = len(steps) // 2
    if num < 2 * SMOOTH:
        return 0.0
    logs = np.log(steps[-num:].astype(np.float64))
    logs -= logs.mean()
    spread = float(logs @ logs)
    slope = float(logs @ values[-num:]) / spread
    rest = values[-num:] - values[-num:].mean() - slope * logs
    error = math.sqrt(float(rest @ rest) / (num - 2) / spread)
    return slope if slope < -SURE * error else 0.0


def beginning(losses: Losses, onset: int) -> int:
    """The step after the last one before the onset at which the smoothed loss was at its best."""
    has = (losses.steps < onset) & np.isfinite(losses.values)
    steps, values = losses.steps[has][-LOOK_BACK:], losses.values[has][-LOOK_BACK:]
    known = level_of(values)
    if known is None or len(values) < 2 * SMOOTH:
        return onset
    smooth = smoothed(values, SMOOTH)
    lowest = int(np.argmin(smooth))
    at_best = level_of(values[: max(lowest + 1, NOISE_STEPS)]) or known  # of a few steps no scatter is known
    noise = min(known.noise, at_best.noise)
    is_near = smooth <= smooth[lowest] + AWAY * MEDIAN * noise / math.sqrt(SMOOTH)
    last = int(np.flatnonzero(is_near)[-1])
    first = len(steps) if last == len(steps) - 1 else last + 1
    while first > SMOOTH and values[first - 1] > known.level + EDGE * noise:  # the way up is hidden in the median
        first -= 1
    return onset if first == len(steps) else int(steps[first])


def left_again(losses: Losses, began: int, before: LossLevel) -> int | None:
    """When the loss last left its level, if it had been back on it since the beginning; None if it was not."""
    since = (losses.steps >= began) & np.isfinite(losses.values)
    steps, values = losses.steps[since], losses.values[since]
    is_away = len(values) > SMOOTH and np.median(values[-SMOOTH // 2 :]) > before.level + SURE * before.noise
    if not is_away:
        return None
    is_back = smoothed(values, SMOOTH) <= before.level  # a slow rise stays within the noise for long, but not below
    back = np.flatnonzero(is_back[SMOOTH - 1 : -1])  # from the first window that is filled
    return int(steps[back[-1] + SMOOTH - SMOOTH // 2]) if len(back) else None  # the median is late by half a window


def smoothed(values: Floats, width: int) -> Floats:
    """Trailing running median."""
    padded = np.concatenate([np.full(width - 1, values[0]), values])
    smooth: Floats = np.median(np.lib.stride_tricks.sliding_window_view(padded, width), axis=1)
    return smooth


def as_of(losses: Losses, loss: float, began: int) -> float:
    """Steps before the beginning at which the loss was last this high; infinity if never."""
    has = (losses.steps < began) & np.isfinite(losses.values)
    if has.sum() < SMOOTH:
        return math.inf
    higher = np.flatnonzero(smoothed(losses.values[has], SMOOTH) >= loss)
    return float(began - losses.steps[has][higher[-1]]) if len(higher) else math.inf
