"""Classifies a loss that left its level: recovering, lingering or diverging.

Design
------
Pure: the losses of one attempt in, a verdict with its numbers out. Nothing is compared with absolute constants, only
with the run itself. The *level* is the median of the last losses before the loss left it, the *noise* the scatter of
single steps around it. The loss is away if its recent median is further above the level than single steps scatter.
Whether it falls, is flat or rises is a straight-line fit to the later half of the time since, so the way up to the peak
does not count forever.

A slowly rising loss leaves its level before a rule can detect it. So the beginning is searched backwards, from the
rule's onset to the last step at which the smoothed loss was still at its best.

The remaining cost is projected. Falling: from its own rate (a step at half the height loses half a step, so a fall by a
tenth of the rest at each step loses ten). Flat: as long again as it has lasted, the usual estimate for an unknown
duration. Rising: three times that, since it must still turn and come down. Nothing is projected for losses that are not
finite: NaN weights stay NaN. The weights are lost if no rank has a finite loss; a NaN on some ranks only comes from
their data, and something kept it out of the weights.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from caboose_daemon.rules.parts.curve import trend
from caboose_daemon.steps.columns import StepSummary

Verdict = Literal["unmoved", "unknown", "early", "recovering", "lingering", "diverging"]
Floats = NDArray[np.float64]

MIN_BEFORE = 8
"""Finite losses before the onset needed for a level."""
LEVEL_STEPS = 16
NOISE_STEPS = 64
LOOK_BACK = 512
"""Steps before the onset in which the beginning of a slow rise is searched."""
SMOOTH = 9
MEDIAN = 1.2533
"""Standard error of a median relative to that of a mean, for normal values."""
SURE = 3.0
"""Standard errors at which a difference is significant."""
AWAY = 6.0
"""Standard errors of the smoothed loss above its best at which it has left it."""
LAST = 5
"""Losses whose median is the current loss."""
RISE = 0.1
"""Minimum recent rise, as a share of the excess, to count as rising."""
LOST_AFTER = 3
"""Consecutive non-finite losses after which the weights count as lost."""


class LossLevel(msgspec.Struct, frozen=True):
    """The level of a loss and the scatter of single steps."""

    level: float
    noise: float
    num_steps: int

    def error(self, num: int) -> float:
        """Standard error of the median of that many steps."""
        return MEDIAN * self.noise / math.sqrt(max(1, num))


class Triage(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on a loss that left its level, with its numbers."""

    verdict: Verdict
    step: int
    """The last judged step."""
    began: int
    """When the loss left its level."""
    level: float = math.nan
    noise: float = math.nan
    excess: float = math.nan
    """Current loss above its level."""
    peak: float = math.nan
    """Maximum above its level."""
    remaining: float = math.inf
    """Projected steps of training still to be lost until it is back."""
    as_of: float = math.inf
    """Steps of learning between the current loss and its level; infinity if it never was this high before."""
    reasons: tuple[str, ...] = ()

    @property
    def age(self) -> int:
        """Steps since it began."""
        return max(0, self.step - self.began)


@dataclass(frozen=True)
class Losses:
    """The losses of one attempt by step; non-finite ones are NaN."""

    steps: NDArray[np.int64]
    values: Floats
    is_lost: NDArray[np.bool_]
    """True at steps where no rank had a finite loss."""

    @classmethod
    def of(cls, recent: Iterable[StepSummary], attempt: int) -> "Losses":
        """The losses of an attempt that are still in memory."""
        rows = [(s.step, s.loss, s.loss_min is None) for s in recent if s.attempt == attempt and s.loss is not None]
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


def judge(losses: Losses, onset: int, *, num_skipped: int = 0, before: LossLevel | None = None) -> Triage:
    """The verdict on a problem that began at `onset`.

    `num_skipped` counts the latest consecutive steps skipped by a gradient scaler. `before`, if given, is the level to
    compare with, instead of the one before the onset.
    """
    step = int(losses.steps[-1]) if len(losses.steps) else onset
    if losses.num_bad:
        return _not_finite(losses.num_bad, num_skipped, step, onset)
    began = onset
    if before is None:
        began = _beginning(losses, onset)
        before = level_of(losses.values[losses.steps < began])
    if before is None:
        why = f"fewer than {MIN_BEFORE} losses are known before step {began}: no level to compare with"
        return Triage(verdict="unknown", step=step, began=began, reasons=(why,))
    since = losses.steps >= began
    excess = losses.values[since] - before.level
    excess = excess[np.isfinite(excess)]
    if not len(excess):
        return Triage(verdict="early", step=step, began=began, level=before.level, noise=before.noise)
    return _follow(losses, before, began, step, excess)


def _not_finite(num_bad: int, num_skipped: int, step: int, onset: int) -> Triage:
    what = f"the last {num_bad} losses are not finite on any rank"
    if num_skipped >= num_bad:
        why = f"{what}, and the gradient scaler skipped each of these steps: the weights are unchanged"
        return Triage(verdict="unmoved", step=step, began=onset, reasons=(why,))
    if num_bad < LOST_AFTER:
        why = f"{what}; after {LOST_AFTER} in a row the weights count as lost"
        return Triage(verdict="early", step=step, began=onset, reasons=(why,))
    why = f"{what}: the weights are lost and cannot recover"
    return Triage(verdict="diverging", step=step, began=onset, reasons=(why,))


def _follow(losses: Losses, before: LossLevel, began: int, step: int, excess: Floats) -> Triage:
    now, peak, noise = float(np.median(excess[-LAST:])), float(_smoothed(excess, 3).max()), before.noise
    facts = Triage(verdict="early", step=step, began=began, level=before.level, noise=noise, excess=now, peak=peak)
    where = f"loss {before.level + now:.4g} against {before.level:.4g} before step {began}"
    if now <= SURE * noise:
        has_moved = peak > SURE * noise
        how = f"{where}: {'back ' if has_moved else ''}within {SURE:g}x its noise ({noise:.3g})"
        return replace(facts, verdict="recovering" if has_moved else "unmoved", remaining=0.0, reasons=(how,))
    where = f"{where}: {now / noise:.1f}x its noise ({noise:.3g}) above, peak {peak / noise:.1f}x"
    if len(excess) < LAST:
        return replace(facts, reasons=(where, f"too early to judge: {len(excess)} steps since"))
    as_of = _as_of(losses, before.level + now, began)
    if math.isfinite(as_of):
        where = f"{where}; last this high {as_of:.0f} steps before that"
    half = excess[-max(LAST, min(NOISE_STEPS, len(excess) // 2)) :]
    line = trend(half.tolist())
    age, span = step - began + 1, _span(losses, began, len(half))
    per_step = line.change / max(1, span - 1)
    if line.falls(SURE) and now < peak:
        rate = (abs(line.change) - line.error) / abs(line.change) * -per_step / max(line.level, noise)
        until, remaining = math.log(now / noise) / rate, 1.0 / rate
        how = f"falling by {100 * rate:.2g} % of the excess per step: back in about {until:.0f} steps"
        return replace(facts, verdict="recovering", remaining=remaining, as_of=as_of, reasons=(where, how))
    if line.rises(SURE) and line.change > max(SURE * noise, RISE * now):
        how = f"rising for {age} steps, by {per_step:.3g} per step: about {3 * age} more steps to turn and come back"
        return replace(facts, verdict="diverging", remaining=3.0 * age, as_of=as_of, reasons=(where, how))
    how = f"flat for {span} steps: expected to last another {age} steps, as long as so far"
    return replace(facts, verdict="lingering", remaining=float(age), as_of=as_of, reasons=(where, how))


def _span(losses: Losses, began: int, num: int) -> int:
    """Steps covered by the last `num` losses; more than `num` if not every step is reported."""
    steps = losses.steps[losses.steps >= began]
    return int(steps[-1] - steps[-min(num, len(steps))]) + 1


def _beginning(losses: Losses, onset: int) -> int:
    """The step after the last one before the onset at which the smoothed loss was at its best."""
    has = (losses.steps < onset) & np.isfinite(losses.values)
    steps, values = losses.steps[has][-LOOK_BACK:], losses.values[has][-LOOK_BACK:]
    known = level_of(values)
    if known is None or len(values) < 2 * SMOOTH:
        return onset
    smooth = _smoothed(values, SMOOTH)
    lowest = int(np.argmin(smooth))
    at_best = level_of(values[: lowest + 1]) or known
    noise = min(known.noise, at_best.noise)
    is_near = smooth <= smooth[lowest] + AWAY * MEDIAN * noise / math.sqrt(SMOOTH)
    last = int(np.flatnonzero(is_near)[-1])
    return onset if last == len(steps) - 1 else int(steps[last + 1])


def _smoothed(values: Floats, width: int) -> Floats:
    """Trailing running median."""
    padded = np.concatenate([np.full(width - 1, values[0]), values])
    smooth: Floats = np.median(np.lib.stride_tricks.sliding_window_view(padded, width), axis=1)
    return smooth


def _as_of(losses: Losses, loss: float, began: int) -> float:
    """Steps before the beginning at which the loss was last this high; infinity if never."""
    has = (losses.steps < began) & np.isfinite(losses.values)
    if has.sum() < SMOOTH:
        return math.inf
    higher = np.flatnonzero(_smoothed(losses.values[has], SMOOTH) >= loss)
    return float(began - losses.steps[has][higher[-1]]) if len(higher) else math.inf
