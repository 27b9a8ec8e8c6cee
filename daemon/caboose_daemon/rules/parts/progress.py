"""How far a run's loss has come down from its start, and so how much of that a rise undoes.

Design
------
A ratio measures how high a loss is only where zero is its lower bound. A log-likelihood has no such bound: the same
curve shifted by a constant would be judged differently. Every run has a distance between its first level and its best
one. Once the loss has been negative a rise is measured by that distance. How much of it a rise undoes is a measure of
severity that does not depend on the kind of loss. A run that has hardly improved (or whose start was not seen) is
measured by the absolute value of its loss.

The first level is a median, so one odd batch does not set it. Where chance is known and lower, it replaces the first
level: a model that is back at chance has lost everything, even if its first steps were worse still.
"""

import math
from statistics import median

from caboose_daemon.rules.parts.chance import known
from caboose_daemon.steps.view import JobView

START_POINTS = 5


class Progress:
    """Follows one run; `first` is its first level, or that of the first steps that were seen."""

    def __init__(self, start_points: int = START_POINTS) -> None:
        self._start_points = start_points
        self._start: list[float] = []
        self.first = math.nan
        self.num = 0
        """Losses so far: a clock that does not depend on the step numbers."""
        self.is_signed = False
        """Whether the loss has been negative, so that zero is not its lower bound."""

    def observe(self, loss: float, view: JobView) -> None:
        """Follows one finite loss."""
        self.num += 1
        if loss < 0:
            self.is_signed = True
        if len(self._start) < self._start_points:
            self._start.append(loss)
            first, chance = median(self._start), known(view)
            self.first = first if chance is None else min(first, chance)

    def restore(self, first: float, best: float) -> None:
        """Continues with what was known before a restart of the daemon."""
        self._start, self.first = [first] * self._start_points, first
        self.is_signed = best < 0

    def gained(self, best: float) -> float:
        """The fall from the first level to the best one; 0 where there is none."""
        return max(0.0, self.first - best)

    def size(self, level: float) -> float:
        """The base of a ratio: the level, or for a signed loss the fall to it, at least its absolute value."""
        return max(self.gained(level), abs(level)) if self.is_signed else level
