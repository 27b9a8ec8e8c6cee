"""How far a run has come from where it began, and so what a rise of its loss undoes.

Design
------
A ratio says how high a loss stands only where zero is its floor. A log-likelihood has none: the same curve shifted by a
constant would be judged otherwise. What every run has is the way it came, from its first level to its best one: a rise
is measured by that once the loss has been negative, and how much of it a rise undoes says how bad it is, whatever the
loss is made of. A run that has hardly come anywhere (or was not seen from its beginning) is measured by the size of its
loss.

The first level is a median, of which one odd batch is no part. Chance, where it is known, is as good as a beginning: a
model that is back there has lost all, even if its first steps were worse still.
"""

import math
from statistics import median

from caboose_daemon.rules.parts.chance import known
from caboose_daemon.steps.view import JobView

START_POINTS = 5


class Progress:
    """Follows one run; `first` is where it began, as far as it was seen."""

    def __init__(self, start_points: int = START_POINTS) -> None:
        self._start_points = start_points
        self._start: list[float] = []
        self.first = math.nan
        self.num = 0
        """Losses so far: the clock of what is remembered of a run, whatever its steps are numbered like."""
        self.is_signed = False
        """Whether the loss has been negative, and zero is not its floor."""

    def observe(self, loss: float, view: JobView) -> None:
        """Takes a finite loss in."""
        self.num += 1
        if loss < 0:
            self.is_signed = True
        if len(self._start) < self._start_points:
            self._start.append(loss)
            first, chance = median(self._start), known(view)
            self.first = first if chance is None else min(first, chance)

    def take_up(self, first: float, best: float) -> None:
        """Goes on with what was known before a restart."""
        self._start, self.first = [first] * self._start_points, first
        self.is_signed = best < 0

    def gained(self, best: float) -> float:
        """How far down it came to its best level; 0 where it did not."""
        return max(0.0, self.first - best)

    def way(self, best: float) -> float:
        """The same, or the size of the loss where that is more."""
        return max(self.gained(best), abs(best))

    def size(self, level: float) -> float:
        """What a ratio is taken of: the level above its floor, or the way down to it where there is no floor."""
        return self.way(level) if self.is_signed else level
