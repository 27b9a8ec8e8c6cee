"""What waits to be sent upstream, within a bound."""

from collections import deque
from collections.abc import Sequence

from caboose_wire.bundles import MAX_PARCELS, Parcel

MIB = 1024 * 1024
BUNDLE_BYTES = MIB
"""After which a bundle is not filled further."""
PARCEL_BYTES = 400
"""What a message takes in this process, beside its bytes."""


class Buffer:
    """Messages in the order of their arrival; when it is full, the oldest are dropped and counted."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._waiting: deque[tuple[Parcel, float]] = deque()
        self.num_bytes = 0
        self.num_dropped = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, parcel: Parcel, now: float) -> None:
        self._waiting.append((parcel, now))
        self.num_bytes += parcel.size + PARCEL_BYTES
        while self.num_bytes > self._max_bytes and len(self._waiting) > 1:
            self._forget()
            self.num_dropped += 1

    def waited(self, now: float) -> float:
        """For how many seconds the oldest message has waited."""
        return now - self._waiting[0][1] if self._waiting else 0.0

    def next(self) -> Sequence[Parcel]:
        """The messages of the next bundle; they stay until `sent`."""
        found: list[Parcel] = []
        size = 0
        for parcel, _ in self._waiting:
            size += parcel.size
            if found and (size > BUNDLE_BYTES or len(found) >= MAX_PARCELS):
                break
            found.append(parcel)
        return found

    def sent(self, num: int) -> None:
        """The first messages have left."""
        for _ in range(num):
            self._forget()

    def _forget(self) -> None:
        parcel, _ = self._waiting.popleft()
        self.num_bytes -= parcel.size + PARCEL_BYTES
