"""Checksum and finiteness of a snapshot's bytes, in one pass over host memory.

Design
------
The checksum is the sum of all bytes read as 64-bit integers, modulo 2^64: any flipped bit changes it. Numbers are
finite if no bit pattern reaches the exponent of infinity: the largest value of the bits read as signed integers shows
the positive ones, read as unsigned the negative ones. Unlike a norm this is exact, cannot overflow in a narrow type,
and costs the same. numpy does both on one core without the interpreter's lock, 64 Ki words at a time, so that the
second read finds them in the cache; torch would take the training's threads.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

WORDS = 1 << 16


@dataclass(frozen=True, slots=True)
class Region:
    """A range of bytes of one kind of number; `kind` is empty where it may be anything."""

    start: int
    stop: int
    kind: str


_KINDS = {
    torch.float64: "float64",
    torch.complex128: "float64",
    torch.float32: "float32",
    torch.complex64: "float32",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
}
_INFINITY = {
    "float64": (np.int64, np.uint64, 0x7FF0 << 48, 0xFFF0 << 48),
    "float32": (np.int32, np.uint32, 0x7F80 << 16, 0xFF80 << 16),
    "float16": (np.int16, np.uint16, 0x7C00, 0xFC00),
    "bfloat16": (np.int16, np.uint16, 0x7F80, 0xFF80),
}
"""The integer type of the bits, and the bits of plus and minus infinity; NaN is beyond them."""


def kind_of(dtype: torch.dtype) -> str:
    """The kind of a region of such numbers; empty for types without infinity."""
    return _KINDS.get(dtype, "")


def inspect(buffer: torch.Tensor, regions: Sequence[Region]) -> tuple[int, bool]:
    """The checksum, and whether all numbers of the regions' kinds are finite."""
    data = buffer.numpy()
    total, is_finite = 0, True
    for region in regions:
        words = data[region.start : region.stop].view(np.int64)
        for start in range(0, len(words), WORDS):
            part = words[start : start + WORDS]
            total += int(np.add.reduce(part))
            if region.kind and is_finite:
                signed, unsigned, plus, minus = _INFINITY[region.kind]
                is_finite = int(part.view(signed).max()) < plus and int(part.view(unsigned).max()) < minus
    return total % 2**64, is_finite


def checksum(buffer: torch.Tensor, regions: Sequence[Region]) -> int:
    """The checksum alone."""
    return inspect(buffer, [Region(region.start, region.stop, "") for region in regions])[0]
