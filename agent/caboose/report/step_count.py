"""The step, and the age of the weights: they differ after a rollback.

Steps count upwards through a rollback, so that every report has its own step; the weights' age is the step less what
rollbacks took back. A caller's own counter may be restored with its weights: from then on it is shifted to ours. Ranks
act at equal steps, so the count is outside the guard: it continues even on a rank where observing has failed.
"""

from collections.abc import Callable


class StepCount:
    """The count of one rank."""

    def __init__(self, start: int, start_model_step: int | None, on_error: Callable[[Exception], None]) -> None:
        self.step = start
        """The last step that has ended, as it is reported."""
        self.num_ended = 0
        """Steps that ended since attach."""
        self.num_rollbacks = 0
        self._model_offset = 0 if start_model_step is None else start_model_step - start
        self._given_offset = 0
        self._on_error = on_error

    @property
    def model_step(self) -> int:
        """The age of the weights."""
        return self.step + self._model_offset

    def advance(self, given: int | None) -> int:
        """A step has ended, with the caller's number if it has one; returns ours."""
        self.num_ended += 1
        self.step = self.step + 1 if given is None else self._meant_by(given)
        return self.step

    def _meant_by(self, given: int) -> int:
        try:
            number = int(given) + self._given_offset
        except (TypeError, ValueError, OverflowError) as error:
            self._on_error(error)
            return self.step + 1
        if number <= self.step and self.num_rollbacks:
            self._given_offset += self.step + 1 - number
            return self.step + 1
        return max(number, self.step)

    def went_back(self, model_step: int) -> None:
        """From now on the weights have this age."""
        self.num_rollbacks += 1
        self._model_offset = model_step - self.step
