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
* *passes*: a disturbance goes on, flat, rising or falling as it has been, and then ends, as bad data do: a run learns
  from them too, so their loss may fall while they are fed. How long it has lasted
  tells how long it may last: the probability that it is longer than `n` steps is taken as `(1 + n / c) ** -k`. What it
  leaves behind (nothing, or a part of the height) then heals.
* *rises*: as it has risen so far, to the end of the run.

Each is fitted to the heights since the peak (or of the later half of the time, where the peak is newer), by its
amplitude alone, and weighed by how well it explains them, and by its probability before anything was known. The noise
of a step is that of the level, or of the raised loss itself where that is larger.

The sums end at the horizon. A run of unknown length is as likely to end before it has lasted as long again as after;
a few last very much longer, so its rest is expected to be twice what it has lasted. Nothing is projected further than
twice the losses that are known, as after a resume: damage that stays for ever was never seen there.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from caboose_daemon.rollback_state.future_kinds import Raised, heals, passes, rises

Floats = NDArray[np.float64]

LOOKS = np.array([1, 2, 3, 5, 8, 13, 21, 34, 55, 89], dtype=np.float64)
"""Steps of waiting after which a later decision is considered."""
POINTS = 64
MIN_HORIZON = 100.0
AS_LONG_AGAIN = 2.0
"""Expected rest of a run of unknown length, as a multiple of what it has lasted: the median is 1, the mean is more."""
LEAST_SCATTER = 0.02
"""Least scatter of a raised loss, as a share of its height: no loss is exactly a curve of this family."""
NEGLIGIBLE = 1e-4
"""Probability, relative to the likeliest, below which a future is left out."""
MOST = 400
"""Futures that are kept, at most."""
MOST_SCATTER = 0.3
USUAL = 6.0
"""Measurements of the scatter that the one at the level counts for: a raised loss may scatter less."""


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
    ongoing: Floats
    """Steps of training that a disturbance which goes on still loses, now and after `LOOKS` steps: going back does not
    end it."""
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

    def is_back(self, steps: float, height: float) -> float:
        """The probability that the loss is at most this high after so many steps."""
        after = int(np.searchsorted(self.times, steps))
        if after == 0 or after == len(self.times):
            heights = self.paths[:, min(after, len(self.times) - 1)]
        else:
            early, late = self.times[after - 1], self.times[after]
            part = (steps - early) / (late - early)
            heights = (1.0 - part) * self.paths[:, after - 1] + part * self.paths[:, after]
        return float(self.weights[heights <= height].sum())

    @property
    def goes_on(self) -> float:
        """What a disturbance is expected to lose after a rollback now, since that does not end it."""
        return float(self.weights @ self.ongoing[:, 0])

    def if_decided_later(self, lost: float, going_back: float) -> tuple[float, float]:
        """The least expected cost of waiting some steps and deciding then, and that number of steps.

        After these steps every other future is as likely as the heights since would leave it. A rollback then costs as
        much more as there were steps, and less as a disturbance that goes on has less left to lose.
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
            acting = going_back + steps + self.ongoing[:, place + 1]
            acts = known @ (whole - acting) > 0.0
            cost = float(self.weights @ np.where(acts, acting, whole))
            if cost < best:
                best, after = cost, float(steps)
        return best, after


def horizon(step: int, num_seen: int, total_steps: float | None = None) -> float:
    """Steps that a run is projected ahead: what is expected to remain of it, but not far beyond what was seen of it."""
    known = max(MIN_HORIZON, AS_LONG_AGAIN * min(step, num_seen))
    return min(known, total_steps - step) if total_steps is not None and total_steps > step else known


def foresee(raised: Raised) -> Futures:
    """The futures of a raised loss."""
    begin, peak = _window(raised.excess)
    since = (raised.steps - raised.steps[peak]).astype(np.float64)[begin:]
    heights = raised.excess[begin:]
    scatter = _scatter(heights, raised)
    times = np.concatenate([[0.0], np.geomspace(1.0, max(2.0, raised.horizon), POINTS)])
    ahead = np.concatenate([times, LOOKS])
    falling, rising = (kind(since, heights, scatter, ahead, raised) for kind in (heals, rises))
    passing, ends = passes(since, heights, scatter, ahead, raised)
    logs, misfits, paths = (np.concatenate(parts) for parts in zip(falling, rising, passing, strict=True))
    until = np.concatenate([np.zeros(len(logs) - len(ends)), ends])
    scale = max(1.0, float(misfits.min()) / max(1, len(heights) - 2))  # the curve may be none of these
    score = logs - 0.5 * (misfits - misfits.min()) / scale
    weights = np.exp(score - score.max())
    is_possible = weights >= max(NEGLIGIBLE, float(np.sort(weights)[-MOST:][0]))
    weights, paths = weights[is_possible] / weights[is_possible].sum(), paths[is_possible]
    lasts = np.maximum(0.0, until[is_possible, None] - np.concatenate([[0.0], LOOKS]))
    lost = np.trapezoid(raised.progress.share(paths[:, : len(times)]), times, axis=1)
    looks = paths[:, len(times) :]
    relative = scatter[-1] / max(abs(raised.level) + max(heights[-1], 0.0), 1e-300)
    return Futures(
        weights=weights,
        remaining=np.asarray(lost, dtype=np.float64),
        looks=looks,
        scatter=np.maximum(raised.noise, relative * (abs(raised.level) + looks)),
        ongoing=raised.progress.share(paths[:, :1]) * lasts,
        times=times,
        paths=paths[:, : len(times)],
    )


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
