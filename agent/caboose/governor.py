"""Keeps the agent within its budget: measures its own share of the step and stretches the sampling when over it.

Design
------
The share is the agent's time on the training thread over the step's wall time, averaged over whole sampling periods, so
that a sampled step does not look like a breach by itself. Over budget, the cadence doubles; well under it for several
periods, it goes back by half, never below what was asked for. Doubling keeps the sampled steps of ranks with different
cadences aligned: the coarser one's are among the finer one's.
"""

MAX_STRETCH = 64
CALM_PERIODS = 4


class Governor:
    """Decides how often to take a closer look."""

    def __init__(self, sample_every: int, budget: float) -> None:
        self._base = sample_every
        self._budget = budget
        self._stretch = 1
        self._agent = 0.0
        self._total = 0.0
        self._num_steps = 0
        self._num_calm = 0
        self.share = 0.0
        """The agent's share of the step, over the last whole period."""

    @property
    def sample_every(self) -> int:
        """The cadence in force."""
        return self._base * self._stretch

    def is_sampled(self, step: int) -> bool:
        """Whether this step, counted from attach on, is looked at closely."""
        return step % self.sample_every == 0

    def account(self, agent_seconds: float, step_seconds: float) -> None:
        """Takes one step's cost into account."""
        self._agent += agent_seconds
        self._total += step_seconds
        self._num_steps += 1
        if self._num_steps < self.sample_every or self._total <= 0:
            return
        self.share = self._agent / self._total
        self._agent = self._total = 0.0
        self._num_steps = 0
        if self.share > self._budget:
            self._stretch = min(self._stretch * 2, MAX_STRETCH)
            self._num_calm = 0
        elif self.share < self._budget / 3 and self._stretch > 1:
            self._num_calm += 1
            if self._num_calm >= CALM_PERIODS:
                self._stretch //= 2
                self._num_calm = 0
