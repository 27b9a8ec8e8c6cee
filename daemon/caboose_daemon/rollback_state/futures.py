"""What a raised loss may do next: possible futures, how likely each is, and what waiting would lose in it.

Design
------
The model. A step of training is worth the share of the run's progress that its weights still hold. The progress is the
fall of the loss from where the run began (or from chance, where that is lower) to the level it left. A loss that is so
much above its level has lost that share of it; a loss at or above the start has lost all, however fast it falls. So a
step at the share `s` loses `s` steps of training, and waiting loses the sum of the shares until the end of the run.

No single extrapolation is right at the beginning: the first steps of a spike that heals and of one that stays look
alike. So a few hundred futures are kept, of three kinds:

* *heals*: the height falls from its peak, exponentially or by a power of time, towards a residue that stays. The time
  it takes is not known at all, so every order of magnitude up to the horizon is equally likely at first. A residue of
  all is damage that stays.
* *passes*: a disturbance goes on, flat or rising as it has been, and then ends, as bad data do. How long it has lasted
  tells how long it may last: the probability that it is longer than `n` steps is taken as `(1 + n / c) ** -2`. What it
  leaves behind (nothing, or a part of the height) then heals.
* *rises*: as it has risen so far, to the end of the run.

Each is fitted to the heights since the peak (or of the later half of the time, where the peak is newer), by its
amplitude alone, and weighed by how well it explains them, and by its probability before anything was known. The noise
of a step is that of the level, or of the raised loss itself where that is larger.

The sums end at the horizon: a run of unknown length is expected to last as long again as it has lasted.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LOOKS = np.array([1, 2, 3, 5, 8, 13, 21, 34, 55, 89], dtype=np.float64)
"""Steps of waiting after which a later decision is considered."""
POINTS = 64
MIN_HORIZON = 100.0
TIMES_PER_OCTAVE = 1.5
FINE = 11
"""Durations around the best one of a shape, so that none fits badly only because the grid is coarse."""
RESIDUES = (0.0, 0.03, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.75, 0.9)
COMES_BACK = 0.8
"""Probability that a height that heals leaves no residue."""
POWER = 0.3
"""Probability that a height that heals falls by a power of time."""
HEALS, STAYS, PASSES, RISES = 0.35, 0.03, 0.5, 0.12
"""Probabilities of the kinds before anything is known."""
PASSING_STEPS = 10.0
"""Scale of the duration of a disturbance that passes by itself."""
LEFT_BEHIND = ((0.0, 0.5), (0.3, 0.25), (1.0, 0.25))
"""Shares of its height that a disturbance leaves behind, and their probabilities."""
HEALING_STEPS = (5.0, 20.0, 80.0, 320.0)
LEAST_SCATTER = 0.02
"""Least scatter of a raised loss, as a share of its height: no loss is exactly a curve of this family."""
NEGLIGIBLE = 1e-4
"""Probability, relative to the likeliest, below which a future is left out."""
MOST = 300
"""Futures that are kept, at most."""
OUTLYING = 2.0
"""Scatters beyond which a distance counts as itself, not as its square."""
MOST_SCATTER = 0.3
USUAL = 6.0
"""Measurements of the scatter that the one at the level counts for: a raised loss may scatter less."""


@dataclass(frozen=True)
class Raised:
    """The heights of a loss above its level, since it left it."""

    steps: NDArray[np.int64]
    excess: Floats
    level: float
    noise: float
    progress: float
    """Fall of the loss from the run's start to its level."""
    age: int
    """Steps since it left its level."""
    horizon: float
    """Expected remaining steps of the run."""


@dataclass(frozen=True)
class Futures:
    """The possible futures, and their probabilities."""

    weights: Floats
    remaining: Floats
    """Steps of training that waiting loses from now on, for each."""
    looks: Floats
    """Heights after `LOOKS` steps, for each."""
    scatter: Floats
    """Scatter of a step at these heights."""
    times: Floats
    paths: Floats
    """Heights at `times`, for each."""

    @property
    def likely(self) -> float:
        """The expected loss of waiting."""
        return float(self.weights @ self.remaining)

    def quantile(self, share: float) -> float:
        """The loss of waiting that is not exceeded with this probability."""
        return float(_quantile(self.remaining[:, None], self.weights, share)[0])

    def band(self, share: float) -> Floats:
        """The heights at `times` that are not exceeded with this probability."""
        return _quantile(self.paths, self.weights, share)

    def if_decided_later(self, lost: float, going_back: float) -> tuple[float, float]:
        """The least expected cost of waiting some steps and deciding then, and that number of steps.

        After these steps every other future is as likely as the heights since would leave it. A rollback then costs as
        much more as there were steps.
        """
        whole = lost + self.remaining
        squares = np.zeros((len(whole), len(whole)))
        best, after, before = math.inf, 0.0, 0.0
        for place, steps in enumerate(LOOKS):
            heights = self.looks[:, place]
            apart = (heights[:, None] - heights[None, :]) / self.scatter[:, place, None]
            squares += (steps - before) * apart**2
            before = steps
            known = self.weights * np.exp(-0.5 * squares)
            expected = known @ whole / known.sum(axis=1)
            acts = expected > going_back + steps
            cost = float(self.weights @ np.where(acts, going_back + steps, whole))
            if cost < best:
                best, after = cost, float(steps)
        return best, after


def share(excess: Floats | float, progress: float) -> Floats:
    """Share of the run's progress that is lost at this height."""
    found: Floats = np.clip(np.asarray(excess, dtype=np.float64) / max(progress, 1e-300), 0.0, 1.0)
    return found


def horizon(step: int, total_steps: float | None = None) -> float:
    """Remaining steps of a run that has made so many; expected ones, if its length is not known."""
    if total_steps is not None and total_steps > step:
        return total_steps - step
    return max(MIN_HORIZON, float(step))


def foresee(raised: Raised) -> Futures:
    """The futures of a raised loss."""
    begin, peak = _window(raised.excess)
    since = (raised.steps - raised.steps[peak]).astype(np.float64)[begin:]
    heights = raised.excess[begin:]
    scatter = _scatter(heights, raised)
    times = np.concatenate([[0.0], np.geomspace(1.0, max(2.0, raised.horizon), POINTS)])
    ahead = np.concatenate([times, LOOKS])
    logs, misfits, paths = _heals(since, heights, scatter, ahead, raised)
    for more in (_passes(since, heights, scatter, ahead, raised), _rises(since, heights, scatter, ahead, raised)):
        logs, misfits, paths = (np.concatenate(pair) for pair in zip((logs, misfits, paths), more, strict=True))
    scale = max(1.0, float(misfits.min()) / max(1, len(heights) - 2))  # the curve may be none of these
    score = logs - 0.5 * (misfits - misfits.min()) / scale
    weights = np.exp(score - score.max())
    is_possible = weights >= max(NEGLIGIBLE, float(np.sort(weights)[-MOST:][0]))
    weights, paths = weights[is_possible] / weights[is_possible].sum(), paths[is_possible]
    lost = np.trapezoid(share(paths[:, : len(times)], raised.progress), times, axis=1)
    looks = paths[:, len(times) :]
    relative = scatter[-1] / max(abs(raised.level) + max(heights[-1], 0.0), 1e-300)
    return Futures(
        weights=weights,
        remaining=np.asarray(lost, dtype=np.float64),
        looks=looks,
        scatter=np.maximum(raised.noise, relative * (abs(raised.level) + looks)),
        times=times,
        paths=paths[:, : len(times)],
    )


Kind = tuple[Floats, Floats, Floats]
"""Of each future: the logarithm of its prior, its misfit, and its heights ahead."""


def _heals(since: Floats, heights: Floats, scatter: Floats, ahead: Floats, raised: Raised) -> Kind:
    """Falls towards a residue, exponentially and by a power, of every duration; and what stays."""
    num = max(4, math.ceil(TIMES_PER_OCTAVE * math.log2(2.0 * max(2.0, raised.horizon))))
    coarse = np.geomspace(1.0, 2.0 * raised.horizon, num)
    width = math.log(coarse[1] / coarse[0])
    whole = np.concatenate([np.maximum(0.0, since), max(0.0, since[-1]) + ahead])
    known = len(since)
    found = [_fitted(np.ones((1, len(whole))), heights, scatter, np.array([math.log(STAYS)]))]
    for falls, chance in ((_exponential, 1.0 - POWER), (_power, POWER)):
        for residue in RESIDUES:
            prior = COMES_BACK if residue == 0.0 else (1.0 - COMES_BACK) / (len(RESIDUES) - 1)
            density = HEALS * chance * prior / (num * width)

            def fit(
                durations: Floats, each: float, *, r: float = residue, f: Shape = falls, d: float = density
            ) -> Kind:
                shape = r + (1.0 - r) * f(whole[None, :] / durations[:, None])
                return _fitted(shape, heights, scatter, np.full(len(durations), math.log(d * each)))

            rough = fit(coarse, width)
            best = int(np.argmin(rough[1]))
            low, high = coarse[max(0, best - 1)], coarse[min(num - 1, best + 1)]
            fine = np.geomspace(low, high, FINE)
            is_rest = (coarse < low) | (coarse > high)
            found.append((rough[0][is_rest], rough[1][is_rest], rough[2][is_rest]))
            found.append(fit(fine, math.log(high / low) / FINE))
    logs, misfits, paths = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return logs, misfits, paths[:, known:]


Shape = Callable[[Floats], Floats]


def _exponential(scaled: Floats) -> Floats:
    return np.exp(-scaled)


def _power(scaled: Floats) -> Floats:
    return 1.0 / (1.0 + scaled)


def _fitted(shape: Floats, heights: Floats, scatter: Floats, logs: Floats) -> Kind:
    """Futures of these shapes, past and ahead, with the amplitudes that fit best."""
    strength, past = 1.0 / scatter**2, shape[:, : len(heights)]
    amplitude = (past @ (strength * heights)) / np.maximum(1e-300, past**2 @ strength)
    paths = np.maximum(0.0, amplitude)[:, None] * shape
    misfits = _misfit((heights - paths[:, : len(heights)]) / scatter)
    return logs, misfits, paths


def _passes(since: Floats, heights: Floats, scatter: Floats, ahead: Floats, raised: Raised) -> Kind:
    """A disturbance that goes on for some steps, and what it leaves behind."""
    level, slope, misfit, occam = _line(since, heights, scatter)
    flat = float((heights / scatter**2).sum() / (1.0 / scatter**2).sum())
    flat_misfit = float(_misfit((heights - flat) / scatter))
    ends = np.concatenate([[0.0], np.geomspace(1.0, max(2.0, raised.horizon), 16)])
    known = PASSING_STEPS + raised.age
    survives = (known / (known + ends)) ** 2
    odds = survives - np.append(survives[1:], 0.0)
    evidence = 2.0 * math.log(PASSING_STEPS / known)  # that it has lasted so long
    logs, misfits, paths = [], [], []
    for height, rise, bad, penalty in ((flat, 0.0, flat_misfit, 0.0), (level, slope, misfit, occam)):
        if rise < 0.0 or (rise == 0.0 and penalty):
            continue
        for end, odd in zip(ends + 0.5, odds, strict=True):
            top = max(0.0, height + rise * end)
            for left, chance in LEFT_BEHIND:
                for steps in HEALING_STEPS if left else HEALING_STEPS[:1]:
                    after = left * top * np.exp(-np.maximum(0.0, ahead - end) / steps)
                    paths.append(np.where(ahead < end, np.maximum(0.0, height + rise * ahead), after))
                    num = len(HEALING_STEPS) if left else 1
                    logs.append(math.log(PASSES * odd * chance / num) + evidence - penalty)
                    misfits.append(bad)
    return np.array(logs), np.array(misfits), np.array(paths)


def _rises(since: Floats, heights: Floats, scatter: Floats, ahead: Floats, raised: Raised) -> Kind:
    """A rise that goes on to the end."""
    level, slope, misfit, occam = _line(since, heights, scatter)
    if slope <= 0.0:
        return np.zeros(0), np.zeros(0), np.zeros((0, len(ahead)))
    path = np.maximum(0.0, level + slope * ahead)
    return np.array([math.log(RISES) - occam]), np.array([misfit]), path[None, :]


def _line(since: Floats, heights: Floats, scatter: Floats) -> tuple[float, float, float, float]:
    """A straight line: its height now, its slope, its misfit, and the penalty for its second parameter."""
    strength = 1.0 / scatter**2
    strength = strength / strength.sum()
    middle = float(strength @ since)
    spread = float(strength @ (since - middle) ** 2)
    mean = float(strength @ heights)
    slope = float(strength @ ((since - middle) * heights)) / max(spread, 1e-300)
    misfit = float(_misfit((heights - mean - slope * (since - middle)) / scatter))
    return mean + slope * (float(since[-1]) - middle), slope, misfit, 0.5 * math.log(len(heights))


def _misfit(rests: Floats) -> Floats:
    """Sum of the squares of the last axis; of outliers, which any loss has, less than that."""
    size = np.abs(rests)
    found: Floats = np.where(size <= OUTLYING, size**2, OUTLYING * (2.0 * size - OUTLYING)).sum(axis=-1)
    return found


def _window(excess: Floats) -> tuple[int, int]:
    """Where the heights that are fitted begin, and the peak."""
    padded = np.concatenate([excess[:1], excess, excess[-1:]])
    smooth = np.median(np.lib.stride_tricks.sliding_window_view(padded, 3), axis=1)
    peak = int(np.argmax(smooth))
    return min(peak, len(excess) // 2), peak


def _scatter(heights: Floats, raised: Raised) -> Floats:
    """The scatter of single steps at these heights: as large a share as at the level, until more is measured."""
    size = abs(raised.level) + np.maximum(heights, 0.0)
    relative = raised.noise / max(abs(raised.level), 1e-300) if raised.level else 0.0
    relative = min(relative, MOST_SCATTER)
    if len(heights) >= 3:
        bends = np.abs(heights[2:] - 2 * heights[1:-1] + heights[:-2]) / math.sqrt(6) / size[1:-1]
        measured = float(np.median(bends)) / 0.6745
        relative = math.sqrt((USUAL * relative**2 + len(bends) * measured**2) / (USUAL + len(bends)))
    found: Floats = np.sqrt(np.maximum(raised.noise, relative * size) ** 2 + (LEAST_SCATTER * heights) ** 2)
    return found


def _quantile(values: Floats, weights: Floats, part: float) -> Floats:
    """Weighted quantiles over the first axis."""
    order = np.argsort(values, axis=0)
    cumulative = np.cumsum(weights[order], axis=0)
    place = np.minimum((cumulative < part).sum(axis=0), len(weights) - 1)
    found: Floats = np.take_along_axis(values, np.take_along_axis(order, place[None, :], axis=0), axis=0)[0]
    return found
