"""Rises of the loss from which this run recovered lately: how high each was, and how long it lasted.

Design
------
With adversarial training, or a model that makes its own targets, the loss rises and comes back in normal operation. The
first such rise looks like any other. But a run that recovered `SEVERAL` times shows what it recovers from: another rise
is reported once it is `BEYOND` times as high as those, or as long. The highest and the longest do not count, since one
of them may have been a narrow escape. Rises in the first quarter of the run so far do not count either: an unstable
start does not excuse later rises.
"""

from collections import deque
from typing import NamedTuple

SEVERAL = 3
REMEMBERED = 8
BEYOND = 1.5
OLD = 0.25


class PastSpike(NamedTuple):
    """A rise that is over."""

    at: int
    height: float
    length: int


class PastSpikes:
    """The last rises of one run; time is counted in its losses."""

    def __init__(self) -> None:
        self._past: deque[PastSpike] = deque(maxlen=REMEMBERED)

    def add(self, at: int, height: float, length: int) -> None:
        self._past.append(PastSpike(at, height, length))

    def is_usual_height(self, height: float) -> bool:
        """Whether the run recovered several times from rises of about this height."""
        heights = sorted(past.height for past in self._past)
        return len(heights) >= SEVERAL and height <= BEYOND * heights[-2]

    def is_usual(self, start: int, height: float, length: int) -> bool:
        """Whether an open rise is no higher and no longer than those the run recovered from."""
        recent = [past for past in self._past if past.at >= OLD * start]
        if len(recent) < SEVERAL:
            return False
        heights, lengths = sorted(past.height for past in recent), sorted(past.length for past in recent)
        return height <= BEYOND * heights[-2] and length <= BEYOND * lengths[-2]
