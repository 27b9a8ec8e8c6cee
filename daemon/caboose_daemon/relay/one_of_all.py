"""Leaves out arrays of which the daemon reads that of the lowest rank only.

Design
------
`lowest` is associative and commutative: whichever ranks share a bundle, and through however many relays it goes, that
of the job's lowest rank arrives. `out.export.items` reads them: the histograms of activations differ between ranks
only by their data, and are the largest part of a sampled step. All other arrays are passed on rank by rank. Sums over
the ranks of a sharded model depend on their order in the last bit, and medians, outliers and origins need every rank.

Only reports of sampled steps are read for this. A rank whose Hello did not come through this relay (it was restarted)
keeps what it sends.
"""

from collections.abc import Sequence

import msgspec

from caboose_wire.bundles import HELLO, MESSAGE, Parcel
from caboose_wire.codec import VERSION
from caboose_wire.messages import LOWEST_RANK_ARRAYS

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
_arrays = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])
_encoder = msgspec.msgpack.Encoder()
Place = tuple[str, str, int, int, str]


class OneOfAll:
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
        """The parcels of a bundle, without what another of them makes needless."""
        lowest: dict[Place, int] = {}
        found: list[tuple[int, Place, int]] = []
        for at, parcel in enumerate(parcels):
            if parcel.kind == HELLO:
                self.introduce(parcel)
            elif parcel.kind == MESSAGE and len(parcel.frames) >= MIN_FRAMES and parcel.frames[0] == REPORT:
                for place, rank in self._places(parcel):
                    lowest[place] = min(rank, lowest.get(place, rank))
                    found.append((at, place, rank))
        changed: dict[int, Parcel] = {}
        for at, place, rank in found:
            if rank != lowest[place]:
                changed[at] = _without(changed.get(at, parcels[at]), place[-1])
        return [changed.get(at, parcel) for at, parcel in enumerate(parcels)] if changed else parcels

    def _places(self, parcel: Parcel) -> list[tuple[Place, int]]:
        who = self._identities.get(parcel.rank)
        if who is None:
            return []
        try:
            report = _report.decode(parcel.frames[1])
        except msgspec.MsgspecError:
            return []  # for the daemon to refuse
        if len(report.arrays) != len(parcel.frames) - 2:
            return []
        filled = [name for name, frame in zip(report.arrays, parcel.frames[2:], strict=True) if frame]
        names = LOWEST_RANK_ARRAYS.intersection(filled)
        return [((who.job, who.launch, report.attempt, report.step, name), who.rank) for name in sorted(names)]


def _without(parcel: Parcel, name: str) -> Parcel:
    fields = _fields.decode(parcel.frames[1])
    arrays = _arrays.decode(fields["arrays"])
    place = 2 + list(arrays).index(name)
    del arrays[name]
    fields["arrays"] = msgspec.Raw(_encoder.encode(arrays))
    frames = [parcel.frames[0], _encoder.encode(fields), *parcel.frames[2:place], *parcel.frames[place + 1 :]]
    return Parcel(parcel.rank, frames)
