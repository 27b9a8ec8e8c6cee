"""The relays that ranks report through: whose message each parcel of a bundle is, and the way back to its rank.

Design
------
No socket in here. Behind this, a relayed rank is a peer as any other: its name is that of its relay's connection and
the relay's number for it, after a random token, so that no connection can name itself like one. Its messages are those
that it encoded, so they mean what they would mean without a relay.

A key of a relay stands for all ranks behind it. What the relay knows of their keys is added, so that ranks of one job
have one key if all its relays have the same; it can never equal the key of a rank that reports directly.

Replies and commands are collected and leave at the end of a turn, one bundle for each relay.
"""

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from caboose_daemon.ingest.rates import Allowance
from caboose_daemon.ingest.table_store import TableStore
from caboose_daemon.jobs.relay_states import RelayStates
from caboose_wire import HelloRequest, Refused, WireError, encode
from caboose_wire.bundles import DOWN_START, GONE, HELLO, MAX_BODY_BYTES, MAX_PARCELS, Bundle, Parcel, pack, unpack
from caboose_wire.hello_tables import Tables

MAX_RANKS_OF_RELAY = 32_768
TABLE_BURST = 64
TABLE_SECONDS = 0.5
"""New tables that a relay may send: at once, and one more every so many seconds. A table may name 65,536 layers."""
MAX_DETAIL = 500
_TOKEN_BYTES = 8
_NUMBER_BYTES = 4


@dataclass(frozen=True, slots=True)
class Arrival:
    """A message of a relayed rank; without frames: its connection is closed."""

    peer: bytes
    frames: Sequence[bytes] = ()
    size: int = 0
    key: str = ""
    tables: Sequence[Tables] | None = None


@dataclass
class _Relay:
    tables: Allowance
    ranks: set[int] = field(default_factory=set)
    outgoing: list[Parcel] = field(default_factory=list)
    is_forgetful: bool = False


class Relays:
    """The connections that sent a bundle."""

    def __init__(self, states: RelayStates) -> None:
        self._states = states
        self._token = secrets.token_bytes(_TOKEN_BYTES)
        self._relays: dict[bytes, _Relay] = {}
        self._tables = TableStore()

    def knows(self, peer: bytes) -> bool:
        """Whether a connection is that of a relay."""
        return peer in self._relays

    def is_relayed(self, peer: bytes) -> bool:
        """Whether a peer is a rank behind a relay."""
        return peer.startswith(self._token)

    def receive(self, peer: bytes, frames: Sequence[bytes], key: str, now: float) -> list[Arrival]:
        """What the ranks sent; WireError if it is no bundle."""
        bundle = unpack(frames)
        relay = self._relays.get(peer)
        if relay is None:
            relay = self._relays[peer] = _Relay(Allowance(TABLE_BURST, TABLE_SECONDS, now))
        self._states.note(bundle.health, now)
        self._add_tables(relay, bundle, now)
        found = []
        for parcel in bundle.parcels:
            arrival = self._arrival(peer, relay, parcel, key)
            if arrival is not None:
                found.append(arrival)
        return found

    def _add_tables(self, relay: _Relay, bundle: Bundle, now: float) -> None:
        for digest, table in bundle.tables.items():
            if self._tables.has((digest,)) or relay.tables.take(now):
                self._tables.add({digest: table})

    def _arrival(self, peer: bytes, relay: _Relay, parcel: Parcel, key: str) -> Arrival | None:
        name = self._token + peer + parcel.rank.to_bytes(_NUMBER_BYTES, "little")
        if parcel.kind == GONE:
            if parcel.rank in relay.ranks:
                relay.ranks.remove(parcel.rank)
                self._states.num_ranks -= 1
            return Arrival(name)
        if parcel.rank not in relay.ranks:
            if len(relay.ranks) >= MAX_RANKS_OF_RELAY:
                self._states.num_ignored += 1
                return None
            relay.ranks.add(parcel.rank)
            self._states.num_ranks += 1
        size = parcel.size
        if parcel.kind != HELLO:
            return Arrival(name, parcel.frames, size, key)
        if not self._tables.has(parcel.tables):  # it was dropped on its way, or here
            relay.is_forgetful = True
            relay.outgoing.append(Parcel(parcel.rank, encode(HelloRequest())))
            return None
        whole = f"{key}/{parcel.key.decode('ascii', 'replace')}" if parcel.key else key
        try:
            return Arrival(name, parcel.frames, size, whole, self._tables.read(parcel.tables))
        except WireError as error:
            self._states.num_ignored += 1
            refused = Refused(reason=error.reason, detail=error.detail[:MAX_DETAIL])
            relay.outgoing.append(Parcel(parcel.rank, encode(refused)))
            return None

    def put(self, peer: bytes, frames: Sequence[bytes]) -> bool:
        """Keeps a message for a relayed rank until `take`; whether there is a way to it."""
        relay = self._relays.get(peer[_TOKEN_BYTES:-_NUMBER_BYTES])
        number = int.from_bytes(peer[-_NUMBER_BYTES:], "little")
        if relay is None or number not in relay.ranks:
            return False
        relay.outgoing.append(Parcel(number, frames))
        return True

    def take(self) -> Iterator[tuple[bytes, list[bytes]]]:
        """The bundles to send now, each with its relay's connection."""
        for peer, relay in self._relays.items():
            parcels, relay.outgoing = relay.outgoing, []
            is_forgetful, relay.is_forgetful = relay.is_forgetful, False
            for some in lots(parcels) or ([[]] if is_forgetful else []):
                yield peer, pack(DOWN_START, some, is_forgetful=is_forgetful)

    def closed(self, peer: bytes) -> list[bytes]:
        """The connection of a relay is closed: the ranks that were behind it."""
        relay = self._relays.pop(peer, None)
        if relay is None:
            return []
        self._states.num_ranks -= len(relay.ranks)
        return [self._token + peer + rank.to_bytes(_NUMBER_BYTES, "little") for rank in relay.ranks]


def lots(parcels: Sequence[Parcel], max_bytes: int = MAX_BODY_BYTES) -> list[list[Parcel]]:
    """The parcels in their order, cut where a bundle would be too large."""
    found: list[list[Parcel]] = []
    size = max_bytes
    for parcel in parcels:
        size += parcel.size
        if size > max_bytes or len(found[-1]) >= MAX_PARCELS:
            found.append([])
            size = parcel.size
        found[-1].append(parcel)
    return found
