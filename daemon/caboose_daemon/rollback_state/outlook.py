"""A raised loss as people see it: what it was, its level, and what it may be, if the run goes on as it is.

Design
------
Few points and short numbers: an outlook is stored with each decision and drawn on the page and in a terminal. The
band holds four in five of the futures; the line in it is their middle.
"""

import msgspec
import numpy as np
from numpy.typing import NDArray

from caboose_daemon.rollback_state.futures import Futures

Floats = NDArray[np.float64]

AHEAD = 24
PAST = 48
LEAST_AHEAD = 30.0
AGES_AHEAD = 3.0
"""How far ahead is shown, in ages of the problem."""
EDGE = 0.1
DIGITS = 5


class Outlook(msgspec.Struct, frozen=True, kw_only=True):
    """The past and the expected losses."""

    past_steps: tuple[int, ...]
    past: tuple[float, ...]
    """Losses at `past_steps`."""
    steps: tuple[int, ...]
    level: tuple[float, ...]
    """The level with its trend, at `steps`."""
    low: tuple[float, ...]
    likely: tuple[float, ...]
    high: tuple[float, ...]


def outlook(
    futures: Futures, steps: NDArray[np.int64], losses: Floats, began: int, level: float, slope: float
) -> Outlook:
    """The outlook of a loss that left its level at `began`; `slope` is its trend over the logarithm of the step."""
    now = int(steps[-1])
    far = min(float(futures.times[-1]), max(LEAST_AHEAD, AGES_AHEAD * (now - began)))
    ahead = np.unique(np.round(np.linspace(0.0, far, AHEAD)).astype(np.int64))
    trend = level + slope * np.log(np.maximum(1, now + ahead) / max(1, began))

    def heights(share: float) -> tuple[float, ...]:
        return _short(trend + np.interp(ahead, futures.times, futures.band(share)))

    shown = np.flatnonzero((steps >= began - max(20, now - began)) & np.isfinite(losses))
    shown = shown[np.unique(np.linspace(0, len(shown) - 1, PAST).astype(np.int64))]
    return Outlook(
        past_steps=tuple(steps[shown].tolist()),
        past=_short(losses[shown]),
        steps=tuple((now + ahead).tolist()),
        level=_short(trend),
        low=heights(EDGE),
        likely=heights(0.5),
        high=heights(1.0 - EDGE),
    )


def _short(values: Floats) -> tuple[float, ...]:
    return tuple(float(f"{value:.{DIGITS}g}") for value in values.tolist())
