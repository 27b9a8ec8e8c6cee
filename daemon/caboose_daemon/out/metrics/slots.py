"""A fixed number of slots for many candidates. It limits the number of series over a day, not only at one moment.

Design
------
Every new label value is a new series for as long as Prometheus keeps it. If the ten worst layers were chosen again at
every scrape, a noisy model of five hundred layers would create hundreds of series in a day. So a name keeps its slot
for 15 minutes, and after that is replaced only by a name that is at least twice as bad. A name that has disappeared
keeps its slot until its time is over: otherwise a job that renames its layers continuously would create series without
limit. Once all slots have been filled, at most three in ten change within 15 minutes.
"""

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

HOLD_SECONDS = 900.0
BETTER = 2.0
NEWCOMERS = 0.3
"""Share of the slots that may change within the hold time."""


class Slots:
    """The names that hold a slot; call `choose` at every scrape."""

    def __init__(self, places: int, hold_seconds: float = HOLD_SECONDS, *, is_patient: bool = True) -> None:
        """`is_patient`: whether a name that is twice as bad waits until the hold time of another is over."""
        self._places = places
        self._is_patient = is_patient
        self._hold = hold_seconds
        self._since: dict[str, float] = {}
        self._num_filled = 0
        self._changes: deque[float] = deque()

    def choose(self, names: Sequence[str], badness: NDArray[np.float64], now: float) -> list[int]:
        """The rows that hold a slot now. NaN or negative badness means no candidate, infinity the worst."""
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
        """Whether another name may get a slot: always until all were filled once, then a few at a time."""
        while self._changes and now - self._changes[0] >= self._hold:
            self._changes.popleft()
        return self._num_filled < self._places or len(self._changes) < max(1, int(NEWCOMERS * self._places))

    def _make_room(self, newcomer: float, rows: dict[str, int], badness: NDArray[np.float64], now: float) -> bool:
        """Frees the slot of the least bad name if the newcomer is bad enough; whether it did."""
        patient = self._hold if self._is_patient else 0.0
        free = [name for name, since in self._since.items() if name in rows and now - since >= patient]
        if not free:
            return False
        least = min(free, key=lambda name: badness[rows[name]] if badness[rows[name]] >= 0 else -1.0)
        # Equal is not worse: ten layers without a dead unit must not take turns.
        held = badness[rows[least]] if badness[rows[least]] >= 0 else -1.0
        if not newcomer > held or not newcomer >= BETTER * max(held, 0.0):
            return False
        del self._since[least]
        return True
