"""Whether a run was thrown off in its first steps, and has come to nothing since.

Design
------
Steps that are far too large do not always leave a high loss behind. ReLU units that they push out of reach of every
input are silent from then on, gradients end with them, and the loss falls back to where the untrained model had it, to
stay there: a calm curve, whose only trace of the cause lies in its first steps. So the highest loss and the highest
gradient norm of the beginning are remembered, and compared with stretches of the curve after them.

A jump has to be one against the run's own noise: there have been two, where an outlier is one, and both lie far beyond
the scatter of the later stretch. And the run has to stand, at no less than nearly what it began with (or chance, where
that is known and lower): a run that learns after a rough start has merely started roughly. One that went on calmly for
a while at its rate, and comes back to the level it had before the jump, has had a spike that healed.

What it began with is its first loss, since a step that is too large has broken the second one already. But of losses
that scatter like those of single samples one says nothing: the first may be a hundredth of what an untrained model has.
So where the scatter of the later losses, as a share of their level, could make up for the difference, it is the median
of the first few. A run that stood and learned after all is not thrown off again by the same jump.
"""

import math
from collections import deque
from dataclasses import dataclass
from statistics import fmean, median, stdev

FALLS = 0.95
"""Share of the stretch before, above which a loss has not fallen."""
NOTHING_LEARNED = 0.9
"""Share of its beginning above which a run has learned next to nothing."""
BEYOND_NOISE = 8.0
"""How many standard deviations of the later losses above their level the lower of two jumps must lie."""
EARLY = 5
"""First losses whose median is where a noisy run began."""
BY_LUCK = 2.5
"""Standard deviations by which a first loss may lie low without meaning anything."""
CALM = 20
"""Steps without a jump that show that the rate is not one to be thrown off by at once."""
HEALED = 0.02
"""Share of its level before by which a loss that has healed may lie above it, where it scatters less than that."""
NORM_RISE, NORM_FALL = 5.0, 20.0
"""How many times the first norm the peak must be, and how many times the later one."""
NORM_GONE = 0.5
"""Share of the first norm that the later one must be below: one that is back where it was has not gone."""


@dataclass(slots=True)
class Peak:
    """The two highest of the values of the beginning that rose, and the step of the first that did."""

    step: int
    value: float
    second: float = -math.inf

    def add(self, value: float) -> bool:
        """Takes one more in; whether it is among the two highest."""
        if value <= self.second:
            return False
        self.value, self.second = max(value, self.value), min(value, self.value)
        return True


class Thrown:
    """Follows one run; what it holds is bounded by `stretch`."""

    def __init__(self, ratio: float, stretch: int) -> None:
        self._ratio = ratio
        self._stretch = stretch
        self._losses: list[float] = []
        self._norms: list[float] = []
        self._before: deque[float] = deque(maxlen=CALM)
        """The last losses before the first jump."""
        self._last_mean = math.nan
        self._early: list[float] = []
        self._is_over = False
        self.first = math.nan
        """The first loss: the untrained model's, for the second one is that of the first step's outcome."""
        self.first_norm = math.nan
        self.loss_peak: Peak | None = None
        self.norm_peak: Peak | None = None
        self.level = math.nan
        """The mean of the last whole stretch since."""
        self.stands = False
        """Whether it was thrown off and stands where it began."""

    def observe(self, step: int, loss: float, norm: float | None, *, is_early: bool, chance: float | None) -> None:
        """Takes a finite loss and, where it is known, a finite norm; peaks count while `is_early`."""
        if math.isnan(self.first):
            self.first = loss
        if len(self._early) < EARLY:
            self._early.append(loss)
        if math.isnan(self.first_norm) and norm is not None and norm > 0:
            self.first_norm = norm
        if is_early and self._rose(step, loss, norm):
            self._begin()  # what counts is what follows the last of the jumps
        if self.loss_peak is None and self.norm_peak is None:
            self._before.append(loss)
            return
        self._losses.append(loss)
        if norm is not None:
            self._norms.append(norm)
        if len(self._losses) >= self._stretch:
            stood, self.stands = self.stands, not self._is_over and self._judge(chance)
            self._is_over |= stood and not self.stands
            self._last_mean = self.level
            self._begin()

    def take_up(self, first: float, peak: Peak, level: float) -> None:
        """Goes on with what was found before a restart."""
        self.first, self.loss_peak, self.level, self._last_mean = first, peak, level, level
        self._early = [first] * EARLY
        self.stands = True

    @property
    def step(self) -> int:
        """Where it was thrown off."""
        return min(peak.step for peak in (self.loss_peak, self.norm_peak) if peak is not None)

    def _rose(self, step: int, loss: float, norm: float | None) -> bool:
        """Whether loss or norm is among the highest yet, and high."""
        has_jumped = has_grown = False
        if loss > self._ratio * self.first > 0:
            has_jumped = self.loss_peak is None or self.loss_peak.add(loss)
            self.loss_peak = self.loss_peak or Peak(step, loss)
        if norm is not None and norm > NORM_RISE * self.first_norm:
            has_grown = self.norm_peak is None or self.norm_peak.add(norm)
            self.norm_peak = self.norm_peak or Peak(step, norm)
        return has_jumped or has_grown

    def _begin(self) -> None:
        self._losses, self._norms = [], []

    def _judge(self, chance: float | None) -> bool:
        self.level, noise = fmean(self._losses), stdev(self._losses)
        began = self._began(noise) if chance is None else min(self._began(noise), chance)
        if not (self.level > NOTHING_LEARNED * began > 0 and self.level > FALLS * self._last_mean):
            return False
        loss, norm = self.loss_peak, self.norm_peak
        jumped = loss is not None and loss.second - self.level > BEYOND_NOISE * noise and not self._has_healed(noise)
        faded = (
            norm is not None
            and bool(self._norms)
            and NORM_FALL * median(self._norms) < norm.second
            and median(self._norms) < NORM_GONE * self.first_norm
            and norm.second > NORM_RISE * max(self._norms)
        )
        return jumped or faded

    def _began(self, noise: float) -> float:
        typical = median(self._early) if self._early else self.first
        is_luck = 0 < (typical - self.first) * abs(self.level) < BY_LUCK * noise * typical
        return typical if is_luck else self.first

    def _has_healed(self, noise: float) -> bool:
        return len(self._before) == CALM and is_back(self.level, noise, median(self._before))


def is_back(level: float, noise: float, before: float) -> bool:
    """Whether a loss is at the level it had before, within its scatter."""
    return level <= before + max(noise, HEALED * abs(before))
