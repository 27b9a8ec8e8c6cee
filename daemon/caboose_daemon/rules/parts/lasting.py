"""Counts how long a condition lasts before it is reported, and how long it is gone before it is over.

Design
------
Most rules judge a step and then wait, because one bad step is noise. The counting is the same everywhere, so it is
here.
"""

from typing import Literal

Verdict = Literal["quiet", "open", "resolved"]


class Lasting:
    """A condition that is reported after `persist` steps, and resolved after `calm` steps without it."""

    def __init__(self, persist: int, calm: int) -> None:
        self.persist = persist
        self.calm = calm
        self.onset: int | None = None
        """The first step of the condition, while it is open or still counted."""
        self.is_open = False
        self.num_true = 0
        self._num_false = 0

    def judge(self, step: int, is_true: bool) -> Verdict:
        """The verdict after one more step. A resolved condition's onset stays readable until the next call."""
        if not self.is_open and not self.num_true:
            self.onset = None  # of a condition that the last call resolved
        if not self.is_open and not is_true:
            self.onset, self.num_true = None, 0
            return "quiet"
        if is_true:
            if self.onset is None:
                self.onset = step
            self.num_true += 1
            self._num_false = 0
            self.is_open = self.is_open or self.num_true >= self.persist
            return "open" if self.is_open else "quiet"
        self._num_false += 1
        if self._num_false < self.calm:
            return "open"
        self.is_open = False
        self.num_true = 0
        return "resolved"

    def restore(self, onset: int) -> None:
        """Continues a condition that was open before a restart of the daemon."""
        self.onset, self.is_open, self.num_true = onset, True, self.persist
        self._num_false = 0
