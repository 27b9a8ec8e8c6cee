"""Whether a run blew up in its first steps and has learned nothing since.

Design
------
Steps that are far too large do not always leave a high loss behind. They can push ReLU units out of reach of every
input: those units pass no gradient any more, and the loss falls back to the untrained model's and stays there. The
curve is calm, and the only trace of the cause is in the first steps. So the highest loss and the highest gradient norm
of the first steps are remembered, and compared with later windows of the curve.

A jump must exceed the run's own noise: there are at least two high values (one is an outlier), both far beyond the
scatter of the later window. And the run must be stuck at nearly its first loss (or at chance, where that is known and
lower): a run that learns after a rough start only had a rough start. A run that was calm for a while at its rate, and
is back at the level it had before the jump, had a spike and recovered.

The reference is the first loss, because one step that is too large already breaks the second. But where losses scatter
as those of single samples do, the first loss alone says little: it may be a hundredth of the untrained model's. So
where the relative scatter of the later losses could explain the difference, the reference is the median of the first
few. A run that was stuck and then learned is not reported again for the same jump.
"""

import math
from collections import deque
from dataclasses import dataclass
from statistics import fmean, median, stdev

FALLS = 0.95
"""Share of the previous window's mean above which a loss has not fallen."""
NOTHING_LEARNED = 0.9
"""Share of its first loss above which a run has learned next to nothing."""
BEYOND_NOISE = 8.0
"""Standard deviations of the later losses by which the lower of two jumps must exceed their level."""
EARLY = 5
"""First losses whose median is the reference of a noisy run."""
BY_LUCK = 2.5
"""Standard deviations by which a first loss may be low by chance."""
CALM = 20
"""Steps without a jump that show that the rate does not blow the run up at once."""
RECOVERED = 0.02
"""Share by which a recovered loss may exceed its level before the jump, where its scatter is smaller than that."""
NORM_RISE, NORM_FALL = 5.0, 20.0
"""The peak norm must be this many times the first norm, and this many times the later one."""
NORM_GONE = 0.5
"""Share of the first norm that the later one must be below: a norm that is back at its first value has not gone."""


@dataclass(slots=True)
class Peak:
    """The two highest values of the first steps, and the step of the first high one."""

    step: int
    value: float
    second: float = -math.inf

    def add(self, value: float) -> bool:
        """Adds a value; whether it is now one of the two highest."""
        if value <= self.second:
            return False
        self.value, self.second = max(value, self.value), min(value, self.value)
        return True


class BlownUpStart:
    """Follows one run; memory is bounded by `window`."""

    def __init__(self, ratio: float, window: int) -> None:
        self._ratio = ratio
        self._window = window
        self._losses: list[float] = []
        self._norms: list[float] = []
        self._before: deque[float] = deque(maxlen=CALM)
        """The last losses before the first jump."""
        self._last_mean = math.nan
        self._early: list[float] = []
        self._has_learned_since = False
        self.first = math.nan
        """The first loss, which is the untrained model's: the second one already depends on the first update."""
        self.first_norm = math.nan
        self.loss_peak: Peak | None = None
        self.norm_peak: Peak | None = None
        self.level = math.nan
        """The mean loss of the last whole window since the jump."""
        self.is_stuck = False
        """Whether the run blew up and is now stuck near its first loss."""

    def observe(self, step: int, loss: float, norm: float | None, *, is_early: bool, chance: float | None) -> None:
        """Follows one step by its finite loss and, where known, finite norm; peaks count while `is_early`."""
        if math.isnan(self.first):
            self.first = loss
        if len(self._early) < EARLY:
            self._early.append(loss)
        if math.isnan(self.first_norm) and norm is not None and norm > 0:
            self.first_norm = norm
        if is_early and self._is_new_peak(step, loss, norm):
            self._start_window()  # only what follows the last jump counts
        if self.loss_peak is None and self.norm_peak is None:
            self._before.append(loss)
            return
        self._losses.append(loss)
        if norm is not None:
            self._norms.append(norm)
        if len(self._losses) >= self._window:
            was_stuck, self.is_stuck = self.is_stuck, not self._has_learned_since and self._judge(chance)
            self._has_learned_since |= was_stuck and not self.is_stuck
            self._last_mean = self.level
            self._start_window()

    def restore(self, first: float, peak: Peak, level: float) -> None:
        """Continues with what was found before a restart of the daemon."""
        self.first, self.loss_peak, self.level, self._last_mean = first, peak, level, level
        self._early = [first] * EARLY
        self.is_stuck = True

    @property
    def step(self) -> int:
        """The step of the first jump."""
        return min(peak.step for peak in (self.loss_peak, self.norm_peak) if peak is not None)

    def _is_new_peak(self, step: int, loss: float, norm: float | None) -> bool:
        """Whether loss or norm is high, and one of the two highest so far."""
        has_jumped = has_grown = False
        if loss > self._ratio * self.first > 0:
            has_jumped = self.loss_peak is None or self.loss_peak.add(loss)
            self.loss_peak = self.loss_peak or Peak(step, loss)
        if norm is not None and norm > NORM_RISE * self.first_norm:
            has_grown = self.norm_peak is None or self.norm_peak.add(norm)
            self.norm_peak = self.norm_peak or Peak(step, norm)
        return has_jumped or has_grown

    def _start_window(self) -> None:
        self._losses, self._norms = [], []

    def _judge(self, chance: float | None) -> bool:
        self.level, noise = fmean(self._losses), stdev(self._losses)
        start = self._start_level(noise) if chance is None else min(self._start_level(noise), chance)
        if not (self.level > NOTHING_LEARNED * start > 0 and self.level > FALLS * self._last_mean):
            return False
        loss, norm = self.loss_peak, self.norm_peak
        jumped = loss is not None and loss.second - self.level > BEYOND_NOISE * noise and not self._has_recovered(noise)
        faded = (
            norm is not None
            and bool(self._norms)
            and NORM_FALL * median(self._norms) < norm.second
            and median(self._norms) < NORM_GONE * self.first_norm
            and norm.second > NORM_RISE * max(self._norms)
        )
        return jumped or faded

    def _start_level(self, noise: float) -> float:
        typical = median(self._early) if self._early else self.first
        is_luck = 0 < (typical - self.first) * abs(self.level) < BY_LUCK * noise * typical
        return typical if is_luck else self.first

    def _has_recovered(self, noise: float) -> bool:
        return len(self._before) == CALM and is_back(self.level, noise, median(self._before))


def is_back(level: float, noise: float, before: float) -> bool:
    """Whether a loss is at the level it had before, within its scatter."""
    return level <= before + max(noise, RECOVERED * abs(before))
