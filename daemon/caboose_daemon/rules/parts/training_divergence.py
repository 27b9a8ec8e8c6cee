"""Whether loss and accuracy on training data disagree: the loss falls and the accuracy stays, or is that of a guess.

Design
------
A batch has few samples, so both are means over windows. A window is judged when it is full; the condition is counted
from window to window by its owner, as evaluations are.
"""

import math
from collections.abc import Mapping

from caboose_daemon.rules.parts.training_score import training_accuracy

WINDOW = 100
"""Steps, or rows of a log, with both numbers."""
GOOD = 0.5
"""Share of chance below which a training loss is good."""


class TrainingDivergence:
    """The training loss and accuracy of one run."""

    def __init__(self, fall: float, hold: float, ceiling: float, chance: float) -> None:
        self._fall, self._hold, self._ceiling, self._chance = fall, hold, ceiling, chance
        self._sums = [0.0, 0.0]
        self._num = 0
        self._still_since: tuple[float, float] | None = None
        """Accuracy and loss when the accuracy last changed."""
        self.loss = math.nan
        self.score = math.nan
        self.is_stalled = False

    def add(self, loss: float | None, metrics: Mapping[str, float]) -> bool:
        """Takes one step; whether a window is full, and both are judged anew."""
        score = training_accuracy(metrics) if metrics and loss is not None else None
        if loss is None or score is None or not math.isfinite(score):
            return False
        self._sums = [self._sums[0] + loss, self._sums[1] + score]
        self._num += 1
        if self._num < WINDOW:
            return False
        self.loss, self.score = self._sums[0] / WINDOW, self._sums[1] / WINDOW
        self._sums, self._num = [0.0, 0.0], 0
        self._judge()
        return True

    def is_at_chance(self, chance: float | None) -> bool:
        """Whether the accuracy is that of a guess though the loss is good."""
        return chance is not None and self.loss < GOOD * chance and self.score < self._chance * math.exp(-chance)

    def _judge(self) -> None:
        still = self._still_since
        scatter = math.sqrt(max(self.score * (1.0 - self.score), 0.0) / WINDOW) / 4.0
        if still is None or abs(self.score - still[0]) > max(self._hold * still[0], scatter):
            self._still_since, self.is_stalled = (self.score, self.loss), False
        else:
            self.is_stalled = self.score < self._ceiling and 0 < self.loss < (1.0 - self._fall) * still[1]
