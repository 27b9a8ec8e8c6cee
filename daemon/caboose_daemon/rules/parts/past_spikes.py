"""What a run got over by itself, lately: how high its loss rose each time, and for how long.

Design
------
Where two networks play against each other, or a model learns from targets that it makes itself, the loss rises and
comes back as a part of the work. From outside the first such rise looks like any other. But a run that has come back
`SEVERAL` times shows what it gets over: a further rise is news once it is `BEYOND` times as high as those, or as long.
The highest and the longest of them do not count, since one may have been a narrow escape; nor do those in the first
quarter of the run so far, whose storms do not excuse later ones.
"""

from collections import deque
from typing import NamedTuple

SEVERAL = 3
REMEMBERED = 8
BEYOND = 1.5
OLD = 0.25


class Excursion(NamedTuple):
    """A rise that is over."""

    at: int
    height: float
    length: int


class Healed:
    """The last excursions of one run; time is counted in its losses."""

    def __init__(self) -> None:
        self._past: deque[Excursion] = deque(maxlen=REMEMBERED)

    def add(self, at: int, height: float, length: int) -> None:
        """Remembers one that is over."""
        self._past.append(Excursion(at, height, length))

    def is_usual(self, began: int, height: float, length: int) -> bool:
        """Whether one that goes on is no more than what the run got over before."""
        recent = [past for past in self._past if past.at >= OLD * began]
        if len(recent) < SEVERAL:
            return False
        heights, lengths = sorted(past.height for past in recent), sorted(past.length for past in recent)
        return height <= BEYOND * heights[-2] and length <= BEYOND * lengths[-2]
