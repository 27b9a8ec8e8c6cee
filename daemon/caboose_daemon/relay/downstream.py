"""What ranks and other relays send to a relay: each message becomes a parcel under the relay's number of its rank."""

import hashlib
from collections.abc import Iterator, Sequence

from caboose_daemon.ingest.table_store import TableStore
from caboose_daemon.relay.rank_numbers import RankNumbers
from caboose_wire import HelloRequest, WireError, encode
from caboose_wire.bundles import DOWN_START, GONE, HELLO, MESSAGE, UP_START, Bundle, Parcel, RelayHealth, pack, unpack
from caboose_wire.codec import HELLO_START, VERSION
from caboose_wire.hello_tables import digest_of, take_apart

MAX_KEY_BYTES = 255
HEARTBEAT = bytes((VERSION, 4))
"""The first frame of a message that waits as reports do, and is not waited for."""


class Downstream:
    """The ranks and relays behind this one."""

    def __init__(self) -> None:
        self.numbers = RankNumbers()
        self.tables = TableStore()
        self._relays: dict[bytes, dict[str, RelayHealth]] = {}
        """What the relays behind this one reported, by connection and name."""
        self._requests: dict[bytes, list[Parcel]] = {}

    def health(self) -> list[RelayHealth]:
        """What the relays behind this one reported last."""
        return [health for known in self._relays.values() for health in known.values()]

    def take(self, peer: bytes, frames: Sequence[bytes], key: str) -> Iterator[Parcel]:
        """The parcels of one message; WireError if it cannot be sent on."""
        if frames[0] == UP_START:
            yield from self._take_bundle(peer, unpack(frames), key.encode())
        elif len(frames[0]) != len(HELLO_START) or len(frames) < 2:
            raise WireError("malformed", "a message begins with a frame of version and type")
        elif frames[0] == HELLO_START:
            yield self._introduce(self.numbers.of(peer), frames, key.encode())
        else:
            yield Parcel(self.numbers.of(peer), frames)

    def _introduce(self, number: int, frames: Sequence[bytes], key: bytes) -> Parcel:
        own, tables = take_apart(frames[1])
        digests = tuple(map(digest_of, tables))
        self.tables.add(dict(zip(digests, tables, strict=True)))
        return Parcel(number, [frames[0], own, *frames[2:]], HELLO, key, digests)

    def _take_bundle(self, peer: bytes, bundle: Bundle, key: bytes) -> Iterator[Parcel]:
        known = self._relays.setdefault(peer, {})
        known.update({health.name: health for health in bundle.health})
        self.tables.add(bundle.tables)
        for parcel in bundle.parcels:
            if parcel.kind == GONE:
                yield from (Parcel(number, [], GONE) for number in self.numbers.remove(peer, parcel.rank))
                continue
            number = self.numbers.of(peer, parcel.rank)
            if parcel.kind == MESSAGE:
                yield Parcel(number, parcel.frames)
            elif self.tables.has(parcel.tables):
                yield Parcel(number, parcel.frames, HELLO, joined(key, parcel.key), parcel.tables)
            else:  # they were dropped on their way, or here
                self._requests.setdefault(peer, []).append(Parcel(parcel.rank, encode(HelloRequest())))

    def requests(self) -> list[tuple[bytes, list[bytes]]]:
        """For each relay that must send tables again, a bundle that asks the ranks whose Hello could not be read."""
        requests, self._requests = self._requests, {}
        return [(peer, pack(DOWN_START, parcels, is_forgetful=True)) for peer, parcels in requests.items()]

    def addressed(self, parcels: Sequence[Parcel]) -> Iterator[tuple[bytes, Sequence[bytes]]]:
        """What came from upstream, with the connections it goes to; nothing for ranks that are gone."""
        of_relays: dict[bytes, list[Parcel]] = {}
        for parcel in parcels:
            way = self.numbers.way(parcel.rank)
            if way is not None and way.inner is None:
                yield way.peer, parcel.frames
            elif way is not None:
                of_relays.setdefault(way.peer, []).append(Parcel(way.inner or 0, parcel.frames))
        for peer, inner in of_relays.items():
            yield peer, pack(DOWN_START, inner)

    def closed(self, peer: bytes) -> list[Parcel]:
        """A connection is closed: what is upstream is sent for each rank behind it."""
        self._relays.pop(peer, None)
        return [Parcel(number, [], GONE) for number in self.numbers.closed(peer)]


def joined(key: bytes, inner: bytes) -> bytes:
    """The key of a rank behind another relay: that of the relay's connection, and what the relay knows."""
    whole = b"/".join(filter(None, (key, inner)))
    return whole if len(whole) <= MAX_KEY_BYTES else hashlib.sha256(whole).hexdigest().encode()
