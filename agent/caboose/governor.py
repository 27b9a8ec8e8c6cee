"""Keeps the agent within its budget: measures its share of the step, and samples less often above it.

Design
------
The share is the agent's time on the training thread and its sender's CPU time over the step's wall time, over whole
sampling periods, so that one sampled step alone is no breach. Above the budget, the more expensive of two things is
halved in frequency: samples (`sample_every`), or the norms of all gradients (`norm_every`: between those steps only the
loss, the learning rate, phases and a clipper's own norm are read, at almost no cost). Well below the budget for several
periods, one is doubled again, never beyond what was asked for.

The agent cannot time everything it costs (caches, the interpreter lock), so it aims at `AIM` of the budget. A budget of
1, the whole step, means no limit.

Both cadences only double and halve, so ranks with different cadences stay aligned: the coarser one's steps are among
the finer one's.
"""

import math
from dataclasses import dataclass

AIM = 0.75
MAX_STRETCH = 64
MAX_NORM_EVERY = 16
CALM_PERIODS = 4


@dataclass(slots=True)
class _Period:
    plain: float = 0.0
    sampled: float = 0.0
    total: float = 0.0
    num_steps: int = 0


class Governor:
    """Decides which steps are sampled, and in which the norms are taken."""

    def __init__(self, sample_every: int, budget: float) -> None:
        self._base = sample_every
        self._budget = budget * AIM if budget < 1 else math.inf
        self._stretch = 1
        self._period = _Period()
        self._num_calm = 0
        self.norm_every = 1
        """Steps between two readings of all gradient norms."""
        self.share = 0.0
        """The agent's share of the step, over the last whole period."""

    @property
    def sample_every(self) -> int:
        """Steps between two samples."""
        return self._base * self._stretch

    def is_sampled(self, step: int) -> bool:
        """Whether this step, counted from attach, is sampled."""
        return step % self.sample_every == 0

    def takes_norms(self, step: int) -> bool:
        """Whether the gradients' norms are taken in this step."""
        return step % self.norm_every == 0 or self.is_sampled(step)

    def account(self, agent_seconds: float, step_seconds: float, *, was_sampled: bool) -> None:
        """Adds one step's cost."""
        period = self._period
        if was_sampled:
            period.sampled += agent_seconds
        else:
            period.plain += agent_seconds
        period.total += step_seconds
        period.num_steps += 1
        if period.num_steps >= self.sample_every and period.total > 0:
            self._judge(period)
            self._period = _Period()

    def _judge(self, period: _Period) -> None:
        self.share = (period.plain + period.sampled) / period.total
        if self.share > self._budget:
            self._num_calm = 0
            can_thin, can_stretch = self.norm_every < MAX_NORM_EVERY, self._stretch < MAX_STRETCH
            if can_thin and (period.plain >= period.sampled or not can_stretch):
                self.norm_every *= 2
            elif can_stretch:
                self._stretch *= 2
        elif self.share < self._budget / 3 and (self._stretch > 1 or self.norm_every > 1):
            self._num_calm += 1
            if self._num_calm >= CALM_PERIODS:
                self._num_calm = 0
                if self.norm_every > 1:
                    self.norm_every //= 2
                else:
                    self._stretch //= 2

    def adopt(self, other: "Governor") -> None:
        """Takes over another's cadences."""
        self._stretch, self.norm_every = other._stretch, other.norm_every  # noqa: SLF001 - the same class
