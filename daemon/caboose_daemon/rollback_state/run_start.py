"""Where a run's loss began: the base of how much of its progress a rise undoes.

Design
------
The median of the first losses of the job's first attempt, so that one odd batch does not set it. Where chance is known
and lower, it counts instead: a model that is back at chance has lost everything. The number is kept with the job's
totals, since the journal may no longer have those steps.
"""

import math
from statistics import median

START_LOSSES = 5


class RunStart:
    """The first losses of one job."""

    def __init__(self) -> None:
        self._first: list[float] = []

    def observe(self, loss: float | None) -> None:
        """Takes the loss of a step, while it is among the first."""
        if len(self._first) < START_LOSSES and loss is not None and math.isfinite(loss):
            self._first.append(loss)

    def restore(self, loss: float | None) -> None:
        """Continues with what was known before a restart of the daemon."""
        if loss is not None:
            self._first = [loss] * START_LOSSES

    def loss(self, num_classes: float | None = None) -> float | None:
        """The loss at the start, or chance where that is known and lower; None if neither is known."""
        known = [median(self._first)] if self._first else []
        if num_classes is not None:
            known.append(math.log(num_classes))
        return min(known, default=None)
