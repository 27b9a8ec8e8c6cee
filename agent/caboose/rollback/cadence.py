"""How often snapshots are taken: at a cadence, less often where they cost too much.

Design
------
A snapshot may take `BUDGET` of the steps between two of them. Above that, they are taken half as often; well below it
for several snapshots, twice as often again, never more than was asked for. The cadence is the one asked for times a
power of two, and a snapshot is due at its multiples: so the steps of a rank that takes fewer are among those of the
others, and ranks have common snapshots without communicating.

Fast steps stretch the cadence too: snapshots must reach back further than it takes to detect a fault (`min_seconds`).
"""

import math
from collections import deque

BUDGET = 0.005
AIM = 0.75
"""A snapshot costs more than its copy: the training loses caches and pages too."""
MAX_STRETCH = 1024
CALM = 3
LOOKBACK = 5


class Cadence:
    """Decides when a snapshot is due."""

    def __init__(self, every: int, budget: float = BUDGET, min_seconds: float = 0.0) -> None:
        self._base = every
        self._min_seconds = min_seconds
        self._budget = budget * AIM if budget < 1 else math.inf  # the whole step: no limit
        self._stretch = 1
        self._previous: int | None = None
        self._num_calm = 0
        self._seconds = 0.0
        self._num_steps = 0
        self._costs: deque[float] = deque(maxlen=LOOKBACK)

    @property
    def every(self) -> int:
        """The cadence in force."""
        return self._base * self._stretch

    def is_due(self, step: int) -> bool:
        """Whether a snapshot is due after the step that ends; called once at each boundary.

        Due at multiples; where the caller counts in larger strides, at the first step at or after one.
        """
        before = step - 1 if self._previous is None else self._previous
        self._previous = step
        return step // self.every > before // self.every

    def passed(self, seconds: float) -> None:
        """Adds the time of a step."""
        self._seconds += seconds
        self._num_steps += 1

    def cost(self, seconds: float | None) -> None:
        """Adds the time of a snapshot, if known; compared with the steps since the last one."""
        if seconds is not None:
            self._costs.append(seconds)
        if not self._num_steps or not self._seconds:
            return
        step_seconds = self._seconds / self._num_steps
        self._seconds, self._num_steps = 0.0, 0
        # The median: one slow copy is no reason to have fewer snapshots.
        typical = sorted(self._costs)[len(self._costs) // 2] if self._costs else 0.0
        while self._stretch < MAX_STRETCH and (
            typical > self._budget * step_seconds * self.every or step_seconds * self.every < self._min_seconds
        ):
            self._stretch *= 2
            self._num_calm = 0
        is_cheap = typical < self._budget * step_seconds * self.every / 3
        if self._stretch > 1 and is_cheap and step_seconds * self.every / 2 >= self._min_seconds:
            self._num_calm += 1
            if self._num_calm >= CALM:
                self._stretch //= 2
                self._num_calm = 0
        else:
            self._num_calm = 0
