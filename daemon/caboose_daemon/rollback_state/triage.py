"""Classifies a loss that left its level: recovering, lingering or diverging.

Design
------
Pure: the losses of one attempt in, a verdict with its numbers out. Nothing is compared with absolute constants, only
with the run itself (see `loss_level`). The loss is away if its recent median is further above the level than single
steps scatter. Whether it falls, is flat or rises is a straight-line fit to the later half of the time since, so the way
up to the peak does not count forever.

What is still lost follows from what the loss may do next (see `futures`). The rate of a fall is that of its logarithm
over the later half of the time, weighted by how far each loss is above the noise. The level moves on with the trend it
had before: learning curves are close to straight lines over the logarithm of the step, so a fall is continued so.

Nothing is projected for losses that are not finite: NaN weights stay NaN. The weights are lost if no rank has a finite
loss; a NaN on some ranks only comes from their data, and something kept it out of the weights.
"""

import math
from typing import Literal

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from caboose_daemon.rollback_state.falling import fall_rate, steps_back
from caboose_daemon.rollback_state.future_kinds import Raised
from caboose_daemon.rollback_state.futures import Futures, foresee, horizon
from caboose_daemon.rollback_state.loss_level import (
    LEVEL_STEPS,
    MEDIAN,
    MIN_BEFORE,
    NOISE_STEPS,
    SURE,
    Floats,
    Losses,
    LossLevel,
    as_of,
    beginning,
    fall,
    left_again,
    level_of,
    progress,
    smoothed,
)
from caboose_daemon.rollback_state.outlook import Outlook, outlook
from caboose_daemon.rollback_state.progress import Progress
from caboose_daemon.rules.parts.curve import trend

Verdict = Literal["unmoved", "unknown", "early", "recovering", "lingering", "diverging"]

LAST = 5
"""Losses whose median is the current loss."""
UNSURE = MEDIAN * math.hypot(1.0 / math.sqrt(LAST), 1.0 / math.sqrt(LEVEL_STEPS))
"""Error of the current loss against its level, both medians, in noises of single steps."""
RISE = 0.1
"""Minimum recent rise, as a share of the excess, to count as rising."""
UNLIKELY = 0.05
"""Probability beyond each end of what waiting is expected to lose."""
HIDDEN = 2.0
"""Factors of e by which a damage may have grown before it could be seen."""
LOST_AFTER = 3
"""Consecutive non-finite losses after which the weights count as lost."""


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
    progress: float = math.nan
    """Fall of the loss from the run's start to its level; where that is not known, the middle of what it may be."""
    lost: float = 0.0
    """Steps of training lost since it began: the sum of the shares of the progress that were lost."""
    remaining: float = math.inf
    """Projected steps of training still to be lost until it is back."""
    least: float = 0.0
    """The same if all goes well: the lower end of the projection's band."""
    most: float = math.inf
    """The same if it does not: the upper end."""
    futures: Futures | None = None
    """What the loss may do next; not recorded with a decision."""
    outlook: Outlook | None = None
    """The same to be drawn."""
    rate: float = 0.0
    """Share of its height by which the loss falls at each step; 0 if it does not."""
    rose_for: int = 0
    """Steps on the way up: until it was half as high as now."""
    as_of: float = math.inf
    """Steps of learning between the current loss and its level; infinity if it never was this high before."""
    reasons: tuple[str, ...] = ()

    @property
    def hidden_for(self) -> float:
        """Steps before it began in which the damage may have grown unseen in the noise, as fast as it did since."""
        if not self.rose_for or not self.excess > 0.0:
            return 0.0
        grown = math.log(self.excess / (2.0 * SURE * UNSURE * self.noise))
        return HIDDEN * self.rose_for / max(1.0, grown)

    @property
    def age(self) -> int:
        """Steps since it began."""
        return max(0, self.step - self.began)


def judge(
    losses: Losses,
    onset: int,
    *,
    num_skipped: int = 0,
    before: LossLevel | None = None,
    start: float | None = None,
    total_steps: float | None = None,
) -> Triage:
    """The verdict on a problem that began at `onset`.

    `num_skipped` counts the latest consecutive steps skipped by a gradient scaler. `before`, if given, is the level to
    compare with, instead of the one before the onset. `start` is the loss where the run began, and `total_steps` its
    length, if known.
    """
    step = int(losses.steps[-1]) if len(losses.steps) else onset
    if losses.num_bad:
        return _not_finite(losses.num_bad, num_skipped, step, onset)
    began, slope = onset, 0.0
    if before is None:
        began = beginning(losses, onset)
        before = level_of(losses.values[losses.steps < began])
        again = None if before is None else left_again(losses, began, before)
        if again is not None:
            began = beginning(losses, again)
            before = level_of(losses.values[losses.steps < began])
        slope = fall(losses, began)
    if before is None:
        why = f"fewer than {MIN_BEFORE} losses are known before step {began}: no level to compare with"
        return Triage(verdict="unknown", step=step, began=began, reasons=(why,))
    since = losses.steps >= began
    steps, values = losses.steps[since], losses.values[since]
    excess = values - before.level - slope * np.log(np.maximum(1, steps) / max(1, began))
    is_finite = np.isfinite(excess)
    if not is_finite.any():
        return Triage(verdict="early", step=step, began=began, level=before.level, noise=before.noise)
    now, peak = float(np.median(excess[is_finite][-LAST:])), float(smoothed(excess[is_finite], 3).max())
    gained = progress(losses, began, before, start, peak)
    shares = np.where(is_finite, gained.share(np.nan_to_num(excess)), 1.0)
    facts = Triage(
        verdict="early",
        step=step,
        began=began,
        level=before.level,
        noise=before.noise,
        excess=now,
        rose_for=_half_up(steps[is_finite], excess[is_finite], now) - began,
        peak=peak,
        progress=gained.middle,
        lost=float(shares.mean()) * (step - began + 1),
    )
    num_ahead = horizon(step, step - int(losses.steps[0]) + 1, total_steps)
    return _follow(losses, facts, gained, steps[is_finite], values[is_finite], excess[is_finite], num_ahead, slope)


def _half_up(steps: NDArray[np.int64], excess: Floats, now: float) -> int:
    """The step at which it was first half as high as now."""
    return int(steps[np.argmax(smoothed(excess, 3) >= 0.5 * now)])


def _not_finite(num_bad: int, num_skipped: int, step: int, onset: int) -> Triage:
    what = f"the last {num_bad} losses are not finite on any rank"
    if num_skipped >= num_bad:
        why = f"{what}, and the gradient scaler skipped each of these steps: the weights are unchanged"
        return Triage(verdict="unmoved", step=step, began=onset, reasons=(why,))
    if num_bad < LOST_AFTER:
        why = f"{what}; after {LOST_AFTER} in a row the weights count as lost"
        return Triage(verdict="early", step=step, began=onset, reasons=(why,))
    why = f"{what}: the weights are lost and cannot recover"
    return Triage(verdict="diverging", step=step, began=onset, least=math.inf, reasons=(why,))


def _follow(
    losses: Losses,
    facts: Triage,
    gained: Progress,
    steps: NDArray[np.int64],
    values: Floats,
    excess: Floats,
    num_ahead: float,
    slope: float,
) -> Triage:
    now, peak, noise, began = facts.excess, facts.peak, facts.noise, facts.began
    where = f"loss {facts.level + now:.4g} against {facts.level:.4g} before step {began}"
    if now <= SURE * UNSURE * noise:
        has_moved = peak > SURE * noise
        how = f"{where}: {'back ' if has_moved else ''}within its noise ({noise:.3g})"
        verdict: Verdict = "recovering" if has_moved else "unmoved"
        return replace(facts, verdict=verdict, remaining=0.0, most=0.0, reasons=(how,))
    where = f"{where}: {now / noise:.1f}x its noise ({noise:.3g}) above, peak {peak / noise:.1f}x"
    where = f"{where}; {gained.share(now):.0%} of the run's progress is lost"
    if len(excess) < LAST:
        return replace(facts, reasons=(where, f"too early to judge: {len(excess)} steps since"))
    high = as_of(losses, facts.level + now, began)
    if math.isfinite(high):
        where = f"{where}; last this high {high:.0f} steps before that"
    verdict, rate, how = _movement(facts, steps, values, excess)
    futures = foresee(
        Raised(
            steps=steps,
            excess=excess,
            level=facts.level,
            noise=noise,
            progress=gained,
            age=facts.step - began + 1,
            horizon=num_ahead,
        )
    )
    least, most = futures.quantile(UNLIKELY), futures.quantile(1.0 - UNLIKELY)
    how = f"{how}: {_steps(futures.likely)} of training still to be lost by waiting ({least:.0f} to {_steps(most)})"
    return replace(
        facts,
        verdict=verdict,
        remaining=futures.likely,
        least=least,
        most=most,
        futures=futures,
        outlook=outlook(futures, losses.steps, losses.values, began, facts.level, slope),
        rate=rate,
        as_of=high,
        reasons=(where, how),
    )


def _movement(facts: Triage, steps: NDArray[np.int64], values: Floats, excess: Floats) -> tuple[Verdict, float, str]:
    """Whether the height falls, rises or stays, and how fast: measured over the later half of the time."""
    num = max(LAST, min(NOISE_STEPS, len(excess) // 2))
    steps, half = steps[-num:], excess[-num:]
    span = int(steps[-1] - steps[0]) + 1
    rate, error = fall_rate(steps, half, facts.noise)
    if rate > SURE * error and facts.excess < facts.peak:
        back = steps_back(facts.excess, facts.noise, rate)
        how = f"falling by {100 * rate:.2g} % of the excess per step, back in about {back:.0f} steps"
        return "recovering", rate, how
    line = trend(values[-num:].tolist())
    if line.rises(SURE) and line.change > max(SURE * facts.noise, RISE * facts.excess):
        rise = line.change / max(1, span - 1)
        return "diverging", 0.0, f"rising for {facts.age + 1} steps, by {rise:.3g} per step"
    return "lingering", 0.0, f"not falling for {span} steps"


def _steps(num: float) -> str:
    return f"{num:.0f} steps"
