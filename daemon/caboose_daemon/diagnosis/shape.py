"""The shape of a rise: little by little, or all at once.

Design
------
A curve is cut into a dozen stretches, and their medians are fitted twice: by a straight line and by one step up. What
fits better is said, by some margin; between the two nothing is. Single slow steps and short pauses move neither.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

STRETCHES = 12
MARGIN = 0.05
"""By which one share of explained variance must exceed the other: line and step explain 3/4 of each other."""
MIN_FACTOR = 1.1


class Rise(NamedTuple):
    """How a curve came from its first level to its last."""

    factor: float
    """The last stretch's median over the first's."""
    is_gradual: bool
    is_jump: bool


def rise(values: NDArray[np.float64]) -> Rise | None:
    """The rise over a dozen stretches of equal length; None where it is too short, or no rise."""
    values = values[np.isfinite(values) & (values > 0)]
    if len(values) < 5 * STRETCHES:
        return None
    levels = np.array([float(np.median(part)) for part in np.array_split(values, STRETCHES)])
    factor = float(levels[-1] / levels[0])
    if factor < MIN_FACTOR:
        return None
    line = float(np.corrcoef(np.arange(STRETCHES), levels)[0, 1]) ** 2
    step = max(_explained(levels, place) for place in range(1, STRETCHES))
    return Rise(factor, is_gradual=line > step + MARGIN, is_jump=step > line + MARGIN)


def _explained(levels: NDArray[np.float64], place: int) -> float:
    """Share of the variance that a step at this place explains."""
    before, after = levels[:place], levels[place:]
    rest = float(np.sum((before - before.mean()) ** 2) + np.sum((after - after.mean()) ** 2))
    return 1.0 - rest / float(np.sum((levels - levels.mean()) ** 2))
