"""How fast a raised loss falls, and what it may fall to.

Design
------
The rate is that of a straight line through the logarithms of the heights, weighted by how far each is above the
noise.

A loss that falls need not come back to its level: a part of the damage may stay. That shows long before it has
stopped falling, in a curve that flattens. So the fall is fitted again towards each of a few residues, from none to
nearly all of the present height. The fits are weighed by how well they explain the heights since the peak, and by
`COMES_BACK`, the probability of no residue before anything is known. What waiting still loses is the mean over them;
its least stays that of a full return, and its most grows to that of the largest residue that is not implausible.
"""

import math

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from caboose_daemon.rollback_state.projection import Height, Remaining, project, share

Floats = NDArray[np.float64]

SCATTER = 0.1
"""Scatter of a raised loss relative to its height, beside the noise of its level."""
RESIDUES = (0.0, 0.25, 0.5, 0.75, 0.9)
"""Shares of the present height that may stay."""
COMES_BACK = 0.9
PLAUSIBLE = 0.05
"""Probability from which a residue counts for the upper end of the band."""
MIN_LOSSES = 8


def fall_rate(steps: NDArray[np.int64], excess: Floats, noise: float) -> tuple[float, float]:
    """The share of itself by which a height falls at each step, and its standard error."""
    rate, error, _ = _fit(steps, excess, noise)
    return rate, error


def with_residues(height: Height, full: Remaining, steps: NDArray[np.int64], excess: Floats) -> Remaining:
    """What waiting still loses, where a part of the height may stay; `full` is without."""
    first = int(np.argmax(excess))
    steps, excess = steps[first:], excess[first:]
    if len(excess) < MIN_LOSSES:
        return full
    fits = [_towards(residue * height.excess, steps, excess, height.noise) for residue in RESIDUES]
    misfits = np.array([misfit for _, _, misfit in fits])
    scale = max(1.0, float(misfits.min()) / (len(excess) - 2))  # the noise of the raised loss may be larger
    prior = np.array([COMES_BACK, *[(1.0 - COMES_BACK) / (len(RESIDUES) - 1)] * (len(RESIDUES) - 1)])
    weights = prior * np.exp(-0.5 * (misfits - misfits.min()) / scale)
    weights /= weights.sum()
    ends = [full.likely]
    for residue, (rate, _, _) in zip(RESIDUES[1:], fits[1:], strict=True):
        stays = residue * height.excess
        lost = float(share(stays, height.progress)) * height.horizon
        falls = project(replace(height, excess=height.excess - stays, rate=max(rate, 1e-9), error=0.0)).likely
        ends.append(min(height.horizon, lost + falls))
    likely = float(weights @ np.array(ends))
    most = max([full.most, *(end for end, weight in zip(ends, weights, strict=True) if weight > PLAUSIBLE)])
    hope = float(weights[0]) * min(1.0, height.rate)  # a fall tells where it ends in about one over its rate steps
    return Remaining(likely, min(full.least, likely), max(most, likely), hope=hope, then=full.likely)


def _towards(stays: float, steps: NDArray[np.int64], excess: Floats, noise: float) -> tuple[float, float, float]:
    """The rate of a fall towards a height that stays, its error, and how badly it explains the heights."""
    rate, error, line = _fit(steps, excess - stays, noise)
    spread = np.sqrt(noise**2 + (SCATTER * excess) ** 2)
    return rate, error, float((((excess - stays - np.exp(line)) / spread) ** 2).sum())


def _fit(steps: NDArray[np.int64], excess: Floats, noise: float) -> tuple[float, float, Floats]:
    """The rate, its standard error, and the fitted logarithms."""
    floor = np.maximum(excess, 0.5 * noise)
    weights = 1.0 / ((noise / floor) ** 2 + SCATTER**2)
    weights /= weights.sum()
    ahead, logs = steps - float(weights @ steps), np.log(floor)
    spread = float(weights @ ahead**2)
    middle = float(weights @ logs)
    slope = float(weights @ (ahead * logs)) / spread
    line = np.asarray(middle + slope * ahead, dtype=np.float64)
    variance = float(weights @ (logs - line) ** 2) * len(steps) / max(1, len(steps) - 2)
    return -slope, math.sqrt(variance / spread / len(steps)), line
