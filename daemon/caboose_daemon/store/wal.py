"""Verifies a -wal file by its checksums, without SQLite, which ends a damaged one silently at the first bad frame.

Design
------
A -wal has a header and frames, each with a page and a running checksum. Frames that follow the last valid one are
normal in two cases: they are left from an earlier round (their salts differ from the header's), or they belong to a
transaction that was not committed. Damage is a frame that is not valid although a commit of the same round follows, or
a header that is not valid. The pages in such a -wal were accepted once, and SQLite would drop them without a word.

The checksum is a linear recurrence modulo 2^32, s0' = s0 + s1 + a, s1' = s1 + s0' + b, over pairs of words (a, b). So a
frame's contribution is a dot product with fixed coefficients, which numpy computes for many frames at once: 16 MiB take
0.3 s.
Format: https://www.sqlite.org/fileformat2.html#the_write_ahead_log
"""

from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

HEADER_BYTES = 32
FRAME_HEADER_BYTES = 24
LEAST_BYTES = HEADER_BYTES + FRAME_HEADER_BYTES + 512
MAGIC = 0x377F0682
"""With its last bit set, checksums are of big-endian words."""
MAX_FRAMES = 4096
"""Frames that are read at a time."""
Words = NDArray[np.uint32]


def wal_problem(path: Path) -> str:
    """What is wrong with a -wal file; empty if nothing is, or if there is no such file."""
    try:
        with path.open("rb") as file:
            header = file.read(HEADER_BYTES)
            if path.stat().st_size < LEAST_BYTES:
                return ""  # no frame, so nothing was committed in it
            words = np.frombuffer(header, ">u4")
            magic, page = int(words[0]), int(words[2])
            order = ">u4" if magic & 1 else "<u4"
            if magic & ~1 != MAGIC or not 512 <= page <= 65536 or page & (page - 1):
                return "its header is not valid"
            state = _after(np.zeros(2, np.uint32), np.frombuffer(header[:24], order).astype(np.uint32))
            if not np.array_equal(state, words[6:8]):
                return "its header is not valid"
            return _frames_problem(file, state, order, page, words[4:6])
    except FileNotFoundError:
        return ""


def _frames_problem(file: BinaryIO, state: Words, order: str, page: int, salts: NDArray[np.uint32]) -> str:
    """`state` is the checksum after the header."""
    size, number, first_bad = FRAME_HEADER_BYTES + page, 0, 0
    powers = _Powers((8 + page) // 8)
    while True:
        content = file.read(size * MAX_FRAMES)
        frames = np.frombuffer(content[: len(content) // size * size], np.uint8).reshape(-1, size)
        if not len(frames):
            return ""
        heads = np.frombuffer(frames[:, :FRAME_HEADER_BYTES].tobytes(), ">u4").reshape(-1, 6)
        is_current = (heads[:, 2:4] == salts).all(axis=1)
        if not first_bad:
            sums = _sums(np.concatenate([frames[:, :8], frames[:, FRAME_HEADER_BYTES:]], axis=1), order, powers)
            for row in range(len(frames)):
                state = powers.whole @ state + sums[row]
                if not is_current[row] or not np.array_equal(state, heads[row, 4:6]):
                    first_bad = number + row + 1
                    break
        if first_bad:
            later = is_current & (np.arange(len(frames)) + number + 1 >= first_bad) & (heads[:, 1] != 0)
            if later.any():
                return f"frame {first_bad} is not valid, and frames that were committed follow it"
        number += len(frames)


def _after(state: Words, words: Words) -> Words:
    """The checksum after these words, one pair at a time; for the few words of a header."""
    s0, s1 = (int(each) for each in state)
    for a, b in words.reshape(-1, 2).tolist():
        s0 = (s0 + s1 + a) & 0xFFFFFFFF
        s1 = (s1 + s0 + b) & 0xFFFFFFFF
    return np.array([s0, s1], np.uint32)


class _Powers:
    """What a frame of so many pairs does to the checksum: `whole` to the one before, `of_a` and `of_b` to its words."""

    def __init__(self, pairs: int) -> None:
        step = np.array([[1, 1], [1, 2]], np.uint32)
        power = np.eye(2, dtype=np.uint32)
        of_a, of_b = np.empty((pairs, 2), np.uint32), np.empty((pairs, 2), np.uint32)
        for place in range(pairs - 1, -1, -1):
            of_a[place] = power @ np.array([1, 1], np.uint32)
            of_b[place] = power @ np.array([0, 1], np.uint32)
            power = power @ step
        self.whole, self.of_a, self.of_b = power, of_a, of_b


def _sums(content: NDArray[np.uint8], order: str, powers: _Powers) -> Words:
    """Each frame's contribution to the checksum."""
    words = np.frombuffer(content.tobytes(), order).astype(np.uint32).reshape(len(content), -1, 2)
    return words[:, :, 0] @ powers.of_a + words[:, :, 1] @ powers.of_b
