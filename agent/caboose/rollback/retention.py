"""Which snapshots are kept: the newest few, and one older.

Design
------
`keep` near slots and one far slot. When the near ones are full, the oldest is replaced; one in `FAR_EVERY` of these
becomes the far one instead, by exchanging slots: no bytes move. At the default cadence the near ones reach 100 to 150
steps back, the far one 150 to 350. Which ones become far depends on their step alone, so all ranks choose the same.
Unhealthy snapshots are replaced first; a pinned one never is.

A new snapshot is in quarantine until a rule had time to detect what was wrong with it.

Slots are filled while they are off the shelf. The training thread puts and takes; other threads read, pin and note
results, all under one lock that is held only for a few slots' fields.
"""

import threading
from collections.abc import Callable

from caboose.rollback.slots import Health, Slot
from caboose_wire import Held

FAR_EVERY = 4
NEVER = 2**62
"""A step that is never reached."""


class SnapshotShelf:
    """The slots of a ring."""

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._lock = threading.Lock()
        self._near: list[Slot] = []
        self._far: Slot | None = None
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

    def make_room(self, every: int) -> Slot | None:
        """A slot to fill: an empty one, or the first to be replaced; None if there is none."""
        with self._lock:
            oldest = self._near[0] if len(self._near) >= self._keep else None
            if oldest is not None and self._is_to_be_far(oldest, every):
                self._near.pop(0)
                former, self._far = self._far, oldest
                if former is not None:
                    return former
            if self._spare:
                return self._spare.pop()
            return None

    def evict(self) -> Slot | None:
        """Takes the least valuable slot off the shelf."""
        with self._lock:
            free = [slot for slot in self._near if slot is not self._pinned]
            if not free:
                return None
            slot = next((slot for slot in free if slot.health in ("not finite", "damaged")), free[0])
            self._near.remove(slot)
            return slot

    def _is_to_be_far(self, slot: Slot, every: int) -> bool:
        far = self._far
        if slot.health or slot.is_quarantined or (far is not None and far is self._pinned):
            return False
        return far is None or bool(far.health) or slot.step % (FAR_EVERY * every) == 0

    def put(self, slot: Slot) -> None:
        """A slot that has been filled."""
        with self._lock:
            self._near.append(slot)

    def find(self, step: int) -> Slot | None:
        """The snapshot taken after this step."""
        with self._lock:
            return self._find(step)

    def _find(self, step: int) -> Slot | None:
        return next((slot for slot in self._all() if slot.step == step), None)

    def _all(self) -> list[Slot]:
        return self._near if self._far is None else [self._far, *self._near]

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
            for slot in [slot for slot in self._all() if slot.step > step]:
                if slot is self._far:
                    self._far = None
                else:
                    self._near.remove(slot)
                slot.num_uses += 1
                self._spare.append(slot)

    def release(self, step: int, now: float, *, min_steps: int, min_seconds: float) -> int:
        """Ends the quarantine of snapshots that are old enough; returns the step of the next check."""
        with self._lock:
            for slot in self._all():
                if slot.is_quarantined and step - slot.step >= min_steps and now - slot.since >= min_seconds:
                    slot.is_quarantined = False
            return min((slot.step for slot in self._all() if slot.is_quarantined), default=NEVER) + min_steps

    def clear(self) -> None:
        """Frees all memory but the pinned: all ranks may be about to restore it."""
        with self._lock:
            self._near = [] if self._pinned is None else [self._pinned]
            self._far, self._spare = None, []

    @property
    def held(self) -> tuple[Held, ...]:
        """All snapshots, oldest first."""
        with self._lock:
            return tuple(
                Held(
                    step=slot.step,
                    model_step=slot.model_step,
                    time=slot.time,
                    is_ready=not (slot.health or slot.is_quarantined),
                    is_far=slot is self._far,
                )
                for slot in sorted(self._all(), key=lambda slot: slot.step)
            )
