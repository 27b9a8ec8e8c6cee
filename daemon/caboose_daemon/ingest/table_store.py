"""The tables of Hellos that came through relays, decoded once however many ranks have them."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from caboose_wire import WireError
from caboose_wire.hello_tables import Tables, read_table

MAX_TABLES = 512
MAX_TABLE_BYTES = 128 * 1024 * 1024


@dataclass
class _Known:
    encoded: bytes
    decoded: dict[int, Tables] = field(default_factory=dict)
    """By the place that it was read for."""


class TableStore:
    """Tables by their digests; beyond its limits, those that were not needed for the longest are dropped."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, _Known] = OrderedDict()
        self._num_bytes = 0

    def add(self, tables: Mapping[bytes, bytes]) -> None:
        """Keeps encoded tables; the digests are those of their bytes."""
        for digest, encoded in tables.items():
            if digest in self._known:
                self._known.move_to_end(digest)
                continue
            self._known[digest] = _Known(encoded)
            self._num_bytes += len(encoded)
        while len(self._known) > MAX_TABLES or self._num_bytes > MAX_TABLE_BYTES:
            _, dropped = self._known.popitem(last=False)
            self._num_bytes -= len(dropped.encoded)

    def has(self, digests: Sequence[bytes]) -> bool:
        """Whether all of them are known."""
        return all(digest in self._known for digest in digests)

    def encoded(self, digest: bytes) -> bytes | None:
        """A table as it came; None if it is not known."""
        known = self._known.get(digest)
        return None if known is None else known.encoded

    def read(self, digests: Sequence[bytes]) -> list[Tables]:
        """The tables of one Hello, in the order of `hello_tables.KINDS`; WireError if one is not known, or is none."""
        found = []
        for place, digest in enumerate(digests):
            known = self._known.get(digest)
            if known is None:
                raise WireError("unknown_peer", "a table of its Hello is not known")
            self._known.move_to_end(digest)
            if place not in known.decoded:
                known.decoded[place] = read_table(place, known.encoded)
            found.append(known.decoded[place])
        return found
