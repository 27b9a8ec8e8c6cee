"""Choices from bytes: all engines give bytes, and the same bytes make the same example.

A choice takes one byte, or two where there are more than 256 options. When the bytes are used up every choice is the
first option, the simplest: bytes that are fewer or nearer to zero make a simpler example.
"""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Chosen:
    """A `Chooser` over bytes."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._place = 0

    @property
    def is_used_up(self) -> bool:
        return self._place >= len(self._content)

    def pick(self, options: Sequence[T]) -> T:
        num = 1 if len(options) <= 256 else 2
        return options[int.from_bytes(self._take(num), "little") % len(options)]

    def some_bytes(self) -> bytes:
        return self._take(self.pick(range(48)))

    def _take(self, num: int) -> bytes:
        taken = self._content[self._place : self._place + num]
        self._place += num
        return taken
