"""Notices that a loss has left its level before a rule does, so that the snapshots from before are kept.

Design
------
A rule that wakes a person waits until it is sure. Snapshots cost nothing to keep, but those from before a slow rise
are gone by then: they are replaced by newer ones, which hold the damage. So a much lower bar is enough to pause new
ones: the smoothed loss is above its best by more than it scatters, as in the search for a problem's beginning, for
longer than it takes to forget a few odd steps. A pause lasts for `AT_MOST` steps. From then on a new level is more
likely than a fault that no rule has found, and one of the snapshots is older than that anyway. The next pause is
possible once the loss was back at its best.

Judged every few steps, from the last losses alone: a job that is not in `auto` costs nothing.
"""

from collections import deque
from collections.abc import Mapping
from itertools import islice

from caboose_daemon.rollback_state.loss_level import LOOK_BACK, SMOOTH, Losses, beginning
from caboose_daemon.steps.columns import StepSummary

AT_MOST = 100
"""Steps of the longest pause."""
EVERY = 4
"""Steps between two judgements."""


class Suspicion:
    """Of one attempt."""

    def __init__(self) -> None:
        self._next = 0
        self._began: int | None = None

    def observe(self, recent: deque[StepSummary], attempt: int, until: Mapping[int, int]) -> bool:
        """Whether the loss has left its level, not long ago; `until` as for `Losses.of`."""
        if not recent:
            return False
        step = recent[-1].step
        if step >= self._next:
            self._next = step + EVERY
            self._judge(recent, attempt, until, step)
        return self._began is not None and step - self._began < AT_MOST

    def _judge(self, recent: deque[StepSummary], attempt: int, until: Mapping[int, int], step: int) -> None:
        last = list(islice(reversed(recent), LOOK_BACK + SMOOTH))
        losses = Losses.of(reversed(last), attempt, until)
        left = beginning(losses, step + 1)
        if left > step:
            self._began = None
        elif self._began is None and step - left >= SMOOTH:
            self._began = left
