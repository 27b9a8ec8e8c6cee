"""Whether a loss runs to minus infinity.

Design
------
A loss below zero is usual: a density, a similarity, a reward. It has a least value, and a run slows down on its way to
it. A loss without one, as a likelihood with its sign forgotten, gets faster. So its distance from zero must be `TIMES`
that of its first values, and must have at least doubled over the later half of the run, and over the half before that.
"""

from statistics import median

from caboose_daemon.rules.parts.curve import Curve

TIMES = 100.0
MIN_MEANS = 16
FIRST = 5


class Runaway:
    """Follows one run."""

    def __init__(self) -> None:
        self._curve = Curve()
        self._first: list[float] = []
        self.since = 0
        """Number of losses after which it was found; 0 while it is not."""

    @property
    def first(self) -> float:
        """The size of the first losses."""
        return median(abs(value) for value in self._first)

    def restore(self, first: float) -> None:
        """Continues with what was found before a restart of the daemon."""
        self._first, self.since = [first] * FIRST, 1

    def add(self, loss: float) -> None:
        """Takes a finite loss."""
        if len(self._first) < FIRST:
            self._first.append(loss)
        if self._curve.add(loss) and self._is_running():
            self.since = self.since or self._curve.num_points

    def _is_running(self) -> bool:
        means = self._curve.means
        if len(means) < MIN_MEANS:
            return False
        now, half, quarter = -means[-1], -means[len(means) // 2], -means[len(means) // 4]
        return now > TIMES * self.first and now > 2.0 * half > 4.0 * quarter > 0.0
