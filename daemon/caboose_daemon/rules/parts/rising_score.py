"""Whether an accuracy still rises: then a loss that stands is no standstill.

Design
------
A loss may have a floor (label smoothing, a margin, a regulariser in it) while answers still get better. Both the
accuracy of training and that of validation are followed, each as its best over the first and over the later half of
what was reported, from the step on at which the loss was last better.
"""

from collections import deque

from caboose_daemon.rules.parts.training_score import TrainingScore
from caboose_daemon.rules.parts.validation import of_events
from caboose_daemon.steps.view import JobView

MEMORY = 24
MIN_VALUES = 4
EVERY = 25
"""Steps between two values of the training accuracy that are kept."""
RISES = 0.02
"""Of the answers that were wrong, the share that must have become right."""


class RisingScore:
    """The accuracies of one run."""

    def __init__(self) -> None:
        self._training = TrainingScore()
        self._num = 0
        self._series: tuple[deque[float], deque[float]] = (deque(maxlen=MEMORY), deque(maxlen=MEMORY))

    def observe(self, view: JobView) -> None:
        """Takes the accuracies of one step."""
        if view.step is not None and view.step.metrics:
            self._training.add(view.step.metrics)
            self._num += 1
            if self._num % EVERY == 0 and self._training.value is not None:
                self._series[0].append(self._training.value)
        for validation in of_events(view.events) if view.events else ():
            if validation.accuracy is not None:
                self._series[1].append(validation.accuracy)

    @property
    def is_rising(self) -> bool:
        """Whether one of them has risen over its later half."""
        return any(_rises(list(series)) for series in self._series)


def _rises(values: list[float]) -> bool:
    if len(values) < MIN_VALUES:
        return False
    half = len(values) // 2
    before, since = max(values[:half]), sorted(values[half:])[half // 2]
    return since > before + RISES * (1.0 - before)
