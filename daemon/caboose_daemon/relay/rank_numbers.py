"""The numbers that a relay gives to the ranks behind it."""

from collections.abc import Iterator
from typing import NamedTuple


class Way(NamedTuple):
    """How a rank is reached."""

    peer: bytes
    """The connection of the rank, or of the relay that it is behind."""
    inner: int | None
    """The number that this relay gave it; None if the rank is connected here."""


class RankNumbers:
    """No number is used twice, so nothing that is still under way reaches another rank."""

    def __init__(self) -> None:
        self._next = 0
        self._numbers: dict[bytes, dict[int | None, int]] = {}
        self._ways: dict[int, Way] = {}

    def __len__(self) -> int:
        return len(self._ways)

    def knows(self, peer: bytes) -> bool:
        """Whether a rank, or a relay with ranks, is behind a connection."""
        return peer in self._numbers

    def of(self, peer: bytes, inner: int | None = None) -> int:
        """The number of a rank, given to it where it has none."""
        numbers = self._numbers.setdefault(peer, {})
        number = numbers.get(inner)
        if number is None:
            number = numbers[inner] = self._next
            self._ways[number] = Way(peer, inner)
            self._next = (self._next + 1) % 2**32
        return number

    def way(self, number: int) -> Way | None:
        """How the rank with this number is reached; None if it is gone."""
        return self._ways.get(number)

    def remove(self, peer: bytes, inner: int | None = None) -> Iterator[int]:
        """The number of a rank that is gone; it is forgotten."""
        number = self._numbers.get(peer, {}).pop(inner, None)
        if number is not None:
            del self._ways[number]
            yield number

    def closed(self, peer: bytes) -> list[int]:
        """A connection is closed: the numbers of all ranks that were behind it; they are forgotten."""
        numbers = list(self._numbers.pop(peer, {}).values())
        for number in numbers:
            del self._ways[number]
        return numbers
