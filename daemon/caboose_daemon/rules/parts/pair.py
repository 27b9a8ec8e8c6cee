"""Whether the losses of the only two ranks of a job stay apart.

Design
------
Of three ranks and more the odd one is found among its peers. Two have no peers, but their weights are the same, and
the difference of their losses is noise around zero if their data are alike. So the difference is averaged with an
exponential memory, and must exceed zero by far more than such an average of its own noise does, by a share of the
higher loss, and by a share of the loss that the run began with: near zero, losses that hardly differ are many times
each other. The higher loss is taken for the odd one, since odd data are hard to learn.
"""

import math

SIGMAS = 8.0
"""Standard deviations of the average; more than for independent steps, since hard stretches of data last."""
SHARE = 0.3
"""Of the higher loss, by which the other one is lower."""
OF_THE_START = 0.05
"""Of the first loss, by which the two differ."""


class Pair:
    """Follows the two losses."""

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._num = 0
        self._first = 0.0
        self._square = 0.0
        self.apart = 0.0
        """The first rank's loss less the second's, averaged."""
        self.higher = 0.0
        """The higher one of the two average losses."""

    def learn(self, first: float, second: float) -> None:
        """Adds one step."""
        self._num += 1
        self._first = self._first or max(abs(first), abs(second))
        rate = 1.0 / min(self._num, self._memory)
        difference = first - second
        self.apart += rate * (difference - self.apart)
        self._square += rate * (difference * difference - self._square)
        self.higher += rate * (max(abs(first), abs(second)) - self.higher)

    @property
    def is_ready(self) -> bool:
        """Whether enough was seen to judge."""
        return self._num >= 2 * self._memory

    def odd(self, *, is_known: bool) -> int | None:
        """The rank whose loss stays above the other's; half of each limit is enough once it is known."""
        factor = 0.5 if is_known else 1.0
        noise = math.sqrt(max(self._square - self.apart**2, 0.0) / (2.0 * self._memory - 1.0))
        limit = factor * max(SIGMAS * noise, SHARE * self.higher, OF_THE_START * self._first)
        return None if abs(self.apart) <= limit else int(self.apart < 0)
