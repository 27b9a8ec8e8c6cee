"""One quantity before and after a change: better, worse, the same, or inconclusive.

Design
------
Where the run would be without the change is unknown. Two estimates bracket it: the curve stayed at its level (the last
third before the change), or it continued along its line. A loss that falls ever more slowly, as losses do, would end
between the two, and so would one whose divergence has ended. So a change counts as an improvement or a regression only
beyond both estimates, by more than chance; and "same" is reported only if every remaining possibility is within
`margin`. Everything else is inconclusive, with the possible range.

A line is extrapolated no further than its own length: the caller cuts the range after the change to that.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from caboose_daemon.offline.verifying.stretch import Floats, Stretch, measure, student

Change = Literal["lower", "higher", "same", "unknown"]
CONFIDENCE = 0.99
"""Of one comparison. A verdict uses five of them, so about one harmless change in twenty gets a verdict."""
LEAST_STEPS = 30
LEAST_INDEPENDENT = 20.0
"""Independent values needed on each side: a random walk appears to have up to 17, however long it is."""


@dataclass(frozen=True, slots=True)
class QuantityChange:
    """The change of one quantity; relative numbers are shares of the expected value."""

    change: Change
    before: float | None
    """Its level just before the change."""
    after: float | None
    lowest: float | None
    """Lower bound of the change."""
    highest: float | None
    """Upper bound of the change."""
    why: str = ""
    """Why it is inconclusive."""
    more_steps: int = 0
    """About how many more steps are needed; 0 if unknown."""


@dataclass(frozen=True, slots=True)
class Pair:
    """The two sides, both long enough to compare."""

    before: Stretch
    after: Stretch

    @property
    def reach(self) -> float:
        """Half width of the interval, in standard errors."""
        return student(CONFIDENCE, min(self.before.num_independent, self.after.num_independent) - 2)


def pair(before: tuple[Floats, Floats], after: tuple[Floats, Floats]) -> Pair | QuantityChange:
    """Both sides from (steps, values), or the reason they cannot be compared."""
    for (steps, _), side in ((before, "before"), (after, "after")):
        if len(steps) < LEAST_STEPS:
            more = LEAST_STEPS - len(steps) if side == "after" else 0
            return unknown(f"only {len(steps)} steps {side} the change; {LEAST_STEPS} are needed", more)
    first, second = measure(*before), measure(*after)
    memory = max(first.memory, second.memory)  # the shorter or calmer side may not show it
    found = Pair(first.remembering(memory), second.remembering(memory))
    for stretch, side in ((found.before, "before"), (found.after, "after")):
        if stretch.num_independent < LEAST_INDEPENDENT:
            more = math.ceil(LEAST_INDEPENDENT * stretch.memory) - stretch.num if side == "after" else 0
            seen = f"strongly correlated {side} the change: {stretch.num} steps count as"
            return unknown(
                f"{seen} {stretch.num_independent:.0f} independent ones; {LEAST_INDEPENDENT:.0f} are needed",
                max(more, 0),
            )
    return found


def unknown(why: str, more_steps: int = 0) -> QuantityChange:
    """An inconclusive result."""
    return QuantityChange("unknown", None, None, None, None, why, more_steps)


def compare_levels(both: Pair | QuantityChange, margin: float, *, is_log: bool = False) -> QuantityChange:
    """Compares levels; `is_log` for logarithms, whose differences are relative changes."""
    if isinstance(both, QuantityChange):
        return both
    before, after = both.before, both.after
    guesses = (
        (before.last_level, before.last_error),
        (before.at(after.middle), before.error_at(after.middle)),
    )
    reach = both.reach
    gaps = [(after.level - guess, reach * math.hypot(error, after.level_error)) for guess, error in guesses]
    lowest, highest = min(gap - error for gap, error in gaps), max(gap + error for gap, error in gaps)
    if all(gap + error < 0 for gap, error in gaps):
        change: Change = "lower"
    elif all(gap - error > 0 for gap, error in gaps):
        change = "higher"
    else:
        change = "unknown"
    if is_log:
        lowest, highest = math.expm1(lowest), math.expm1(highest)
        shown = math.exp(before.last_level), math.exp(after.level)
    else:
        scale = max(abs(before.last_level), before.scatter)
        lowest, highest = lowest / scale, highest / scale
        shown = before.last_level, after.level
    if -margin <= lowest and highest <= margin:
        change = "same"
    is_between = min(gap for gap, _ in gaps) < 0 < max(gap for gap, _ in gaps)
    chance = "it may be there without the change" if is_between else "within chance"
    return QuantityChange(change, *shown, lowest, highest, chance if change == "unknown" else "")


def compare_slopes(both: Pair | QuantityChange) -> QuantityChange:
    """Compares slopes, per 1,000 steps and as shares of the level.

    Every curve falls more slowly over time: that is no regression. Falling faster than before, or rising for the first
    time, is an effect.
    """
    if isinstance(both, QuantityChange):
        return both
    before, after = both.before, both.after
    # A slope depends on the slowest part of the noise, of which a range has few independent values.
    reach = student(CONFIDENCE, min(before.num_independent, after.num_independent) / 4 - 2)
    error = reach * math.hypot(before.slope_error, after.slope_error)
    gap = after.slope - before.slope
    rises = after.slope - reach * after.slope_error > 0
    rose = before.slope + reach * before.slope_error > 0
    scale = max(abs(before.last_level), before.scatter) / 1000
    why = ""
    if gap + error < 0:
        change: Change = "lower"
    elif gap - error > 0 and rises and not rose:
        change = "higher"
    else:
        change = "unknown"
        slower = gap - error > 0
        why = "it falls more slowly, as every curve does over time" if slower else "both slopes are within their errors"
    if gap - error > 0 and rises and before.slope <= 0:
        change, why = "higher", ""
    return QuantityChange(
        change, before.slope / scale, after.slope / scale, (gap - error) / scale, (gap + error) / scale, why
    )


def compare_rates(num_before: int, steps_before: int, num_after: int, steps_after: int) -> QuantityChange:
    """Compares rates per 1,000 steps: the exact test of two counts, given their sum."""
    if not steps_before or not steps_after:
        return unknown("no steps on one side of the change", 1)
    total = num_before + num_after
    change: Change = _test_of_counts(num_before, steps_before, num_after, steps_after) if total else "same"
    why = "too few to exclude chance" if change == "unknown" else "" if total else "there were none"
    rates = 1000 * num_before / steps_before, 1000 * num_after / steps_after
    return QuantityChange(change, *rates, None, None, why)


def compare_states(before: Sequence[bool], after: Sequence[bool]) -> QuantityChange:
    """Compares how often a run is in a state, given for each step; as rates per 1,000 steps.

    Neighbouring steps share one reason, so bursts are counted, not steps. A burst of `LEAST_STEPS` does not end without
    a reason: one that lasted until the change and stopped there was ended by it, and one that lasts at the end of the
    run counts as permanent.
    """
    if not before or not after:
        return unknown("no steps on one side of the change", 1)
    first, second = _bursts(before), _bursts(after)
    rates = 1000 * sum(before) / len(before), 1000 * sum(after) / len(after)
    lasted, lasts = (_lasts(side) for side in (before, after))
    if lasted != lasts and not (first if lasts else second):
        return QuantityChange("lower" if lasted else "higher", *rates, None, None)
    change: Change = _test_of_counts(first, len(before), second, len(after)) if first + second else "same"
    if lasts and change == "lower":
        change = "unknown"
    why = "" if first + second else "there were none"
    if change == "unknown":
        why = f"{first} {'burst' if first == 1 else 'bursts'} before, {second} after: too few to exclude chance"
    return QuantityChange(change, *rates, None, None, why)


def _lasts(states: Sequence[bool]) -> bool:
    return len(states) >= LEAST_STEPS and all(states[-LEAST_STEPS:])


def _bursts(states: Sequence[bool]) -> int:
    return sum(is_in and not was_in for was_in, is_in in pairwise((False, *states)))


def _test_of_counts(num_before: int, steps_before: int, num_after: int, steps_after: int) -> Change:
    """The binomial test, with logarithms: the coefficients of a thousand overflow a float."""
    total, share = num_before + num_after, steps_after / (steps_before + steps_after)
    up, down = math.log(share), math.log1p(-share)
    chances = [
        math.exp(math.lgamma(total + 1) - math.lgamma(k + 1) - math.lgamma(total - k + 1) + k * up + (total - k) * down)
        for k in range(total + 1)
    ]
    at_most, at_least = math.fsum(chances[: num_after + 1]), math.fsum(chances[num_after:])
    if 2 * min(at_most, at_least) >= 1 - CONFIDENCE:
        return "unknown"
    return "lower" if at_most < at_least else "higher"


def finite(steps: Floats, values: Floats) -> tuple[Floats, Floats]:
    """The finite values with their steps."""
    is_finite = np.isfinite(values)
    return steps[is_finite], values[is_finite]
