"""Leaves out arrays that the daemon does not read.

Design
------
- Of `LOWEST_RANK_ARRAYS` it reads that of the lowest rank only (`out.export.items`): the histograms of activations, the
  largest part of a sampled step. To take the lowest is associative and commutative: whichever ranks share a bundle, and
  through however many relays it goes, that of the job's lowest rank arrives.
- Of `UNREAD_IF_FINITE_ARRAYS` it looks for numbers that are not finite (`rules.parts.origins`).

All other arrays are passed on rank by rank. Sums over the ranks of a sharded model depend on their order in the last
bit, and medians, outliers and origins need every rank.

Only reports of sampled steps are read for this. A rank whose Hello did not come through this relay (it was restarted)
keeps what it sends.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from caboose_wire.bundles import HELLO, MESSAGE, Parcel
from caboose_wire.codec import VERSION
from caboose_wire.messages import LOWEST_RANK_ARRAYS, UNREAD_IF_FINITE_ARRAYS

REPORT = bytes((VERSION, 2))
MIN_FRAMES = 8
"""Of a message with the arrays of a sampled step; other steps have one array."""


class _Identity(msgspec.Struct, frozen=True):
    """Which rank of which process group, from a Hello."""

    job: str
    rank: int
    launch: str = ""


class _Report(msgspec.Struct, frozen=True):
    attempt: int
    step: int
    arrays: dict[str, msgspec.Raw] = {}


_identity = msgspec.msgpack.Decoder(_Identity)
_report = msgspec.msgpack.Decoder(_Report)
_fields = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])
_encoder = msgspec.msgpack.Encoder()
Place = tuple[str, str, int, int, str]


class UnreadArrays:
    """Knows which rank of which job each number is."""

    def __init__(self) -> None:
        self._identities: dict[int, _Identity] = {}

    def forget(self, number: int) -> None:
        self._identities.pop(number, None)

    def introduce(self, parcel: Parcel) -> None:
        """A Hello passes."""
        try:
            self._identities[parcel.rank] = _identity.decode(parcel.frames[1])
        except (msgspec.MsgspecError, IndexError):
            self.forget(parcel.rank)

    def reduce(self, parcels: Sequence[Parcel]) -> Sequence[Parcel]:
        """The parcels of a bundle, without what the daemon does not read."""
        lowest: dict[Place, int] = {}
        found: list[tuple[int, Place, int]] = []
        unread: dict[int, list[str]] = {}
        for at, parcel in enumerate(parcels):
            if parcel.kind == HELLO:
                self.introduce(parcel)
            elif parcel.kind == MESSAGE and len(parcel.frames) >= MIN_FRAMES and parcel.frames[0] == REPORT:
                report, who = _read(parcel), self._identities.get(parcel.rank)
                if report is None or who is None:
                    continue
                arrays = dict(zip(report.arrays, parcel.frames[2:], strict=True))
                unread[at] = [name for name in UNREAD_IF_FINITE_ARRAYS & arrays.keys() if _is_finite(arrays[name])]
                for name in LOWEST_RANK_ARRAYS & {name for name, frame in arrays.items() if frame}:
                    place = (who.job, who.launch, report.attempt, report.step, name)
                    lowest[place] = min(who.rank, lowest.get(place, who.rank))
                    found.append((at, place, who.rank))
        for at, place, rank in found:
            if rank != lowest[place]:
                unread[at].append(place[-1])
        return [_without(parcel, unread[at]) if unread.get(at) else parcel for at, parcel in enumerate(parcels)]


def _read(parcel: Parcel) -> _Report | None:
    """What is needed of a report; None of one that the daemon will refuse."""
    try:
        report = _report.decode(parcel.frames[1])
    except msgspec.MsgspecError:
        return None
    return report if len(report.arrays) == len(parcel.frames) - 2 else None


def _is_finite(frame: bytes) -> bool:
    return len(frame) % 4 == 0 and bool(np.isfinite(np.frombuffer(frame, dtype="<f4")).all())


def _without(parcel: Parcel, names: Sequence[str]) -> Parcel:
    fields = _fields.decode(parcel.frames[1])
    arrays = _fields.decode(fields["arrays"])
    kept = {name: frame for name, frame in zip(arrays, parcel.frames[2:], strict=True) if name not in names}
    fields["arrays"] = msgspec.Raw(_encoder.encode({name: arrays[name] for name in kept}))
    return Parcel(parcel.rank, [parcel.frames[0], _encoder.encode(fields), *kept.values()])
