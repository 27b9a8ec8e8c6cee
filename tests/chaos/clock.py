"""A wall clock that another process can move.

Design
------
`install` replaces `time.time` by a function that adds a number of seconds read from a file of eight bytes, mapped into
memory (`follow`). It must come before the imports of the product: a default argument keeps the function it found. So
everything in Python that asks for the time gets the moved one, as after `settimeofday`; the monotonic clock is not
affected. What asks in C (SQLite, libzmq, the file system) sees the real time: that would need libfaketime.
"""

import mmap
import struct
import time
from collections.abc import Callable
from pathlib import Path

FORMAT = "<d"


_followed: list[mmap.mmap] = []


def install() -> None:
    """From now on the clock can be moved."""
    real: Callable[[], float] = time.time

    def moved() -> float:
        offset: float = struct.unpack_from(FORMAT, _followed[0])[0] if _followed else 0.0
        return real() + offset

    time.time = moved


def follow(path: Path) -> None:
    """From now on the time is what the file says."""
    _followed[:] = [_mapped(path)]


def move(path: Path, seconds: float) -> None:
    """Sets the clock of every process that follows this file so many seconds ahead of the real time."""
    struct.pack_into(FORMAT, _mapped(path), 0, seconds)


def _mapped(path: Path) -> mmap.mmap:
    with path.open("a+b") as file:
        if file.tell() < struct.calcsize(FORMAT):
            file.write(struct.pack(FORMAT, 0.0))
            file.flush()
        return mmap.mmap(file.fileno(), struct.calcsize(FORMAT))
