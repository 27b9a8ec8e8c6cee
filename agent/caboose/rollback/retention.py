"""Which snapshots are kept: the newest, and older ones that are spaced ever wider.

Design
------
A sudden fault needs the newest snapshot from before it, a slow one may have begun hundreds of steps ago. So of the
`keep` + 1 snapshots the one is replaced that leaves the smallest gap, measured by the logarithm of age: ages grow by a
constant factor. The oldest is replaced once the second oldest reaches `REACH` cadences back. The choice depends on the
steps alone, so ranks that hold the same snapshots choose the same. Unhealthy snapshots are replaced first; a pinned one
never is.

No time makes a snapshot good or bad: the daemon knows when a fault began, uses only snapshots from before that, and
stops new ones while a fault lasts.

Slots are filled while they are off the shelf. The training thread puts and takes; other threads read, pin and note
results, all under one lock that is held only for a few slots' fields.
"""

import math
import threading
from collections.abc import Callable

from caboose.rollback.slots import Health, Slot
from caboose_wire import Held

REACH = 16
"""Cadences that the second oldest snapshot is back when the oldest is replaced."""

YOUNGEST = 0.3
"""Cadences at which the logarithm of age begins to count: the smaller, the more the newest are worth."""


class SnapshotShelf:
    """The slots of a ring."""

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._lock = threading.Lock()
        self._held: list[Slot] = []
        """Oldest first."""
        self._spare: list[Slot] = []
        self._num_slots = 0
        self._pinned: Slot | None = None

    @property
    def num_slots(self) -> int:
        """The number of slots when all are made."""
        return self._keep + 1

    def reserve(self) -> bool:
        """Reserves one more slot, if there may be one; the caller then makes it."""
        with self._lock:
            may = self._num_slots < self.num_slots
            self._num_slots += may
            return may

    def add_spare(self, slot: Slot) -> None:
        """An empty slot."""
        with self._lock:
            self._spare.append(slot)

    def take_spare(self) -> Slot | None:
        """An empty slot, if there is one."""
        with self._lock:
            return self._spare.pop() if self._spare else None

    def evict(self, step: int, every: int) -> Slot | None:
        """Takes the least valuable slot off the shelf, to be filled after this step; None if all are pinned."""
        with self._lock:
            free = [place for place, slot in enumerate(self._held) if slot is not self._pinned]
            if not free:
                return None
            ages = [(step - slot.step) / every for slot in self._held]
            bad = [place for place in free if self._held[place].health in ("not finite", "damaged")]
            return self._held.pop(bad[0] if bad else min(free, key=lambda place: _value(ages, place)))

    def put(self, slot: Slot) -> None:
        """A slot that has been filled."""
        with self._lock:
            self._held.append(slot)

    def find(self, step: int) -> Slot | None:
        """The snapshot taken after this step."""
        with self._lock:
            return self._find(step)

    def _find(self, step: int) -> Slot | None:
        return next((slot for slot in self._held if slot.step == step), None)

    def note(self, slot: Slot, num_uses: int, health: Health, checksum: int | None = None) -> None:
        """Records the result of a check, unless the slot was filled again since."""
        with self._lock:
            if slot.num_uses == num_uses:
                slot.health = health
                if checksum is not None:
                    slot.checksum = checksum

    def pin(self, step: int, why_not: Callable[[Slot | None], str]) -> str:
        """Protects a snapshot from being overwritten; returns a reason if it may not be used."""
        with self._lock:
            slot = self._find(step)
            reason = why_not(slot)
            if not reason:
                self._pinned = slot
            return reason

    def unpin(self) -> None:
        """Ends the protection."""
        with self._lock:
            self._pinned = None

    def drop_newer(self, step: int) -> None:
        """Drops all snapshots taken after this step."""
        with self._lock:
            for slot in [slot for slot in self._held if slot.step > step]:
                self._held.remove(slot)
                slot.num_uses += 1
                self._spare.append(slot)

    def clear(self) -> None:
        """Frees all memory but the pinned: all ranks may be about to restore it."""
        with self._lock:
            self._held = [] if self._pinned is None else [self._pinned]
            self._spare = []

    @property
    def held(self) -> tuple[Held, ...]:
        """All snapshots, oldest first."""
        with self._lock:
            num_far = len(self._held) - self._keep
            return tuple(
                Held(
                    step=slot.step,
                    model_step=slot.model_step,
                    time=slot.time,
                    is_ready=not slot.health,
                    is_far=place < num_far,
                )
                for place, slot in enumerate(self._held)
            )


def _value(ages: list[float], place: int) -> float:
    """How much would be missed: the gap that replacing a snapshot leaves; ages in cadences, oldest first."""
    if place == 0:
        reach = max(REACH, 2 * len(ages))
        return -1.0 if len(ages) > 1 and ages[1] >= reach else math.inf
    newer = ages[place + 1] if place + 1 < len(ages) else 0.0
    return math.log((ages[place - 1] + YOUNGEST) / (newer + YOUNGEST))
