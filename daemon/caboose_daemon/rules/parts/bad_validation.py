"""Whether the validation loss has become NaN or infinite.

Design
------
Some loggers write NaN where nothing was evaluated, and some validations were never finite. Neither is news. A
validation has gone bad if several evaluations were finite since the start, or since the last bad one.
"""

import math

from caboose_daemon.steps.settings import as_number
from caboose_daemon.steps.view import JobView

FINITE_BEFORE = 3


class BadValidation:
    """Follows the evaluations of one run."""

    def __init__(self) -> None:
        self._num_finite = 0
        self.value = math.nan
        """The first bad value."""
        self.onset: int | None = None
        """The step of the first bad evaluation, while the last one was bad."""

    def observe(self, view: JobView, step: int) -> None:
        """Takes the evaluations of this step."""
        for event in view.events:
            loss = as_number(event.fields.get("loss")) if event.kind == "validation" else None
            if loss is None:
                continue
            if math.isfinite(loss):
                self._num_finite, self.onset = self._num_finite + 1, None
                continue
            if self.onset is None and self._num_finite >= FINITE_BEFORE:
                self.value, self.onset = loss, step
            self._num_finite = 0
