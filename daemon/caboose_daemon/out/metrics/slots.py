"""A few places for many candidates, with patience: what bounds the number of series over a day, not only at a moment.

Design
------
Every new label value is a new series for as long as Prometheus keeps it. If the ten worst layers were chosen anew at
every scrape, a noisy model of five hundred layers would leave hundreds of series behind by the evening. So a name that
has taken a place keeps it for 15 minutes, and then only gives way to one that is worse, and twice as bad. A name that
vanished keeps its place empty until its time is over: otherwise somebody who renames layers at every moment makes
series without end. And once the places have been filled, three in ten at most change hands within 15 minutes, whatever
happens.
"""

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

HOLD_SECONDS = 900.0
BETTER = 2.0
NEWCOMERS = 0.3
"""Share of the places that may change hands within the time a place is held."""


class Slots:
    """Who holds the places; `choose` is asked at every scrape."""

    def __init__(self, places: int, hold_seconds: float = HOLD_SECONDS, *, is_patient: bool = True) -> None:
        """`is_patient`: whether one that is twice as bad waits until a holder's time is over."""
        self._places = places
        self._is_patient = is_patient
        self._hold = hold_seconds
        self._since: dict[str, float] = {}
        self._num_filled = 0
        self._changes: deque[float] = deque()

    def choose(self, names: Sequence[str], badness: NDArray[np.float64], now: float) -> list[int]:
        """The rows that have a place now; NaN or negative badness is none, infinity the worst."""
        rows = {name: row for row, name in enumerate(names)}
        for name in [n for n, since in self._since.items() if n not in rows and now - since >= self._hold]:
            del self._since[name]
        worst = np.argsort(-np.where(badness >= 0, badness, -1.0), kind="stable")[: 2 * self._places]
        for row in worst.tolist():
            name = names[row]
            if name in self._since or not badness[row] >= 0:
                continue
            if not self._may_change(now):
                break
            if len(self._since) < self._places or self._make_room(badness[row], rows, badness, now):
                self._since[name] = now
                if self._num_filled < self._places:
                    self._num_filled += 1
                else:
                    self._changes.append(now)
        return sorted(rows[name] for name in self._since if name in rows and badness[rows[name]] >= 0)

    def _may_change(self, now: float) -> bool:
        """Whether another name may come: the first ones always, later ones a few at a time."""
        while self._changes and now - self._changes[0] >= self._hold:
            self._changes.popleft()
        return self._num_filled < self._places or len(self._changes) < max(1, int(NEWCOMERS * self._places))

    def _make_room(self, newcomer: float, rows: dict[str, int], badness: NDArray[np.float64], now: float) -> bool:
        """Whether the least bad holder that may be asked gave way."""
        patient = self._hold if self._is_patient else 0.0
        free = [name for name, since in self._since.items() if name in rows and now - since >= patient]
        if not free:
            return False
        least = min(free, key=lambda name: badness[rows[name]] if badness[rows[name]] >= 0 else -1.0)
        # Of equals nobody is worse: ten layers without a dead unit must not take turns.
        held = badness[rows[least]] if badness[rows[least]] >= 0 else -1.0
        if not newcomer > held or not newcomer >= BETTER * max(held, 0.0):
            return False
        del self._since[least]
        return True
