"""When a step ends, where several optimizers step in turn; and which of them take part.

Design
------
A step ends when each of the optimizers that set the pace has stepped. At first these are all that may take part; if one
of them is about to step for the second time before the others, the step ends there, and from then on only those set
the pace that had stepped. So it is set by those that step most often, and a step has one update of each of them. One
that steps more rarely (an actor at every second update of its critic) falls into the step that is open, which is the
next one where the others have stepped already. It never ends a step, so steps stay regular; if it goes on alone for
`PATIENCE` steps, it sets the pace.
"""

from collections.abc import Iterable

PATIENCE = 20
"""Steps of other optimizers, without one that sets the pace, after which those are taken to have replaced it."""


class Pace:
    """The optimizers of one step at a time, by any key."""

    def __init__(self, expected: Iterable[int]) -> None:
        self._expected = set(expected)
        self._stepped: dict[int, int] = {}

    def begins(self, optimizer: int) -> bool:
        """An optimizer is about to step; returns whether the step that is open ends before that."""
        if optimizer in self._stepped and (optimizer in self._expected or self._stepped[optimizer] >= PATIENCE):
            paced = self._expected & self._stepped.keys()
            self._expected = paced or {optimizer}
            return True
        return False

    def ended(self, optimizer: int) -> bool:
        """It has stepped; returns whether the step ends with that."""
        self._stepped[optimizer] = self._stepped.get(optimizer, 0) + 1
        return self._expected <= self._stepped.keys()

    def is_set_by(self, optimizer: int) -> bool:
        """Whether every step of this one is a step by itself."""
        return self._expected == {optimizer} and not self._stepped

    def forget(self, optimizer: int) -> None:
        """It is gone, and another one has its key."""
        self._expected.discard(optimizer)
        self._stepped.pop(optimizer, None)

    @property
    def is_open(self) -> bool:
        """Whether an optimizer has stepped since the last step ended."""
        return bool(self._stepped)

    def boundary(self) -> None:
        """The next step begins."""
        self._stepped.clear()
