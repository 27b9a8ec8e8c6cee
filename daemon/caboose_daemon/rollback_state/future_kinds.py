"""The kinds of futures of a raised loss: it heals, it passes, or it rises. See `futures` for the model.

Design
------
Each kind gives its futures with the logarithm of their prior probability, how badly they explain the heights so far,
and their heights ahead. Every future has one number that is fitted, its amplitude; a rise has two and pays for the
second. Durations are tried on a coarse grid and again around the best one, so that a clean fall is not taken for
another shape only because the grid misses it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from caboose_daemon.rollback_state.progress import Progress

Floats = NDArray[np.float64]

TIMES_PER_OCTAVE = 1.5
FINE = 11
"""Durations around the best one of a shape, so that none fits badly only because the grid is coarse."""
RESIDUES = (0.0, 0.03, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.75, 0.9)
COMES_BACK = 0.8
"""Probability that a height that heals leaves no residue."""
FADES = ((math.inf, 0.7), (6.0, 0.3))
"""What becomes of a residue: it stays, or heals in so many times the duration of the fall; and the probabilities."""
POWER = 0.3
"""Probability that a height that heals falls by a power of time."""
HEALS, STAYS, PASSES, RISES = 0.35, 0.03, 0.5, 0.12
"""Probabilities of the kinds before anything is known."""
PASSING_STEPS = 10.0
"""Scale of the duration of a disturbance that passes by itself."""
TAIL = 2.0
"""How fast longer durations get rarer: the probability of one beyond `n` is `(1 + n / PASSING_STEPS) ** -TAIL`."""
LEFT_BEHIND = ((0.0, 0.5), (0.3, 0.25), (1.0, 0.25))
"""Shares of its height that a disturbance leaves behind, and their probabilities."""
LEARNED = 3.0
"""Progress by which a loss is above its level from which it does not fall because bad data are learned from: the loss
of wrong answers is at most a few times that of a guess. It is the weights that are far off, and get better."""
RISEN = ((1.0, 1.0),)
"""The same of a disturbance that rises: data are as bad at its end as at its beginning, so it is the weights that got
worse, and they stay where they are."""
HEALING_STEPS = (5.0, 20.0, 80.0, 320.0)
OUTLYING = 2.0
"""Scatters beyond which a distance counts as itself, not as its square."""


@dataclass(frozen=True)
class Raised:
    """The heights of a loss above its level, since it left it."""

    steps: NDArray[np.int64]
    excess: Floats
    level: float
    noise: float
    progress: Progress
    """Fall of the loss from the run's start to its level."""
    age: int
    """Steps since it left its level."""
    horizon: float
    """Expected remaining steps of the run."""


Kind = tuple[Floats, Floats, Floats]
"""Of each future: the logarithm of its prior, its misfit, and its heights ahead."""


def heals(since: Floats, heights: Floats, scatter: Floats, ahead: Floats, raised: Raised) -> Kind:
    """Falls towards a residue, exponentially and by a power, of every duration; and what stays."""
    num = max(4, math.ceil(TIMES_PER_OCTAVE * math.log2(2.0 * max(2.0, raised.horizon))))
    coarse = np.geomspace(1.0, 2.0 * raised.horizon, num)
    width = math.log(coarse[1] / coarse[0])
    whole = np.concatenate([np.maximum(0.0, since), max(0.0, since[-1]) + ahead])
    known, span = len(since), float(since[-1] - since[0] + 1.0)
    later = np.concatenate([np.zeros(known), ahead])
    found = [_fitted(np.ones((1, len(whole))), heights, scatter, np.array([math.log(STAYS)]))]
    for falls, chance in ((_exponential, 1.0 - POWER), (_power, POWER)):
        for residue in RESIDUES:
            prior = COMES_BACK if residue == 0.0 else (1.0 - COMES_BACK) / (len(RESIDUES) - 1)
            density = HEALS * chance * prior / (num * width)
            for fade, odds in FADES if residue else FADES[:1]:
                each = density * (odds if residue else 1.0)

                def fit(
                    durations: Floats,
                    share: float,
                    *,
                    r: float = residue,
                    f: Shape = falls,
                    g: float = fade,
                    d: float = each,
                ) -> Kind:
                    shape = (1.0 - r) * f(whole[None, :] / durations[:, None])
                    shape += r * np.exp(-later[None, :] / (g * np.maximum(durations, span)[:, None]))
                    return _fitted(shape, heights, scatter, np.full(len(durations), math.log(d * share)))

                rough = fit(coarse, width)
                best = int(np.argmin(rough[1]))
                low, high = coarse[max(0, best - 1)], coarse[min(num - 1, best + 1)]
                is_rest = (coarse < low) | (coarse > high)
                found.append((rough[0][is_rest], rough[1][is_rest], rough[2][is_rest]))
                found.append(fit(np.geomspace(low, high, FINE), math.log(high / low) / FINE))
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


def passes(since: Floats, heights: Floats, scatter: Floats, ahead: Floats, raised: Raised) -> tuple[Kind, Floats]:
    """A disturbance that goes on for some steps, and what it leaves behind; and those numbers of steps."""
    level, slope, misfit, occam = _line(since, heights, scatter)
    flat = float((heights / scatter**2).sum() / (1.0 / scatter**2).sum())
    flat_misfit = float(_misfit((heights - flat) / scatter))
    ends = np.concatenate([[0.0], np.geomspace(1.0, max(2.0, raised.horizon), 16)])
    known = PASSING_STEPS + raised.age
    survives = (known / (known + ends)) ** TAIL
    odds = survives - np.append(survives[1:], 0.0)
    evidence = TAIL * math.log(PASSING_STEPS / known)  # that it has lasted so long
    logs, misfits, paths, until = [], [], [], []
    for height, rise, bad, penalty in ((flat, 0.0, flat_misfit, 0.0), (level, slope, misfit, occam)):
        if (rise == 0.0 and penalty) or (rise < 0.0 and flat > LEARNED * raised.progress.middle):
            continue
        for end, odd in zip(ends + 0.5, odds, strict=True):
            top = max(0.0, height + rise * end)
            for left, chance in RISEN if rise > 0.0 else LEFT_BEHIND:
                for steps in HEALING_STEPS if left else HEALING_STEPS[:1]:
                    after = left * top * np.exp(-np.maximum(0.0, ahead - end) / steps)
                    paths.append(np.where(ahead < end, np.maximum(0.0, height + rise * ahead), after))
                    num = len(HEALING_STEPS) if left else 1
                    logs.append(math.log(PASSES * odd * chance / num) + evidence - penalty)
                    misfits.append(bad)
                    until.append(end)
    return (np.array(logs), np.array(misfits), np.array(paths)), np.array(until)


def rises(since: Floats, heights: Floats, scatter: Floats, ahead: Floats, raised: Raised) -> Kind:
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
