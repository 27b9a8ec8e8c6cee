"""A condition that has to last before it is told, and to be gone for a while before it is over.

Design
------
Most rules judge a step and then wait: one bad step is noise. What is counted is the same everywhere, so it is here.
"""

from typing import Literal

Verdict = Literal["quiet", "open", "resolved"]


class Lasting:
    """Counts how long a condition holds, and how long it has been gone."""

    def __init__(self, persist: int, calm: int) -> None:
        self.persist = persist
        self.calm = calm
        self.onset: int | None = None
        """Where the condition began, while it holds or is being waited for."""
        self.is_open = False
        self.num_true = 0
        self._num_false = 0

    def judge(self, step: int, is_true: bool) -> Verdict:
        """The verdict after one more step. The onset of what is resolved stays readable until the next call."""
        if not self.is_open and not self.num_true:
            self.onset = None  # of what was resolved at the last call
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

    def take_up(self, onset: int) -> None:
        """Goes on with what was open before a restart."""
        self.onset, self.is_open, self.num_true = onset, True, self.persist
        self._num_false = 0
