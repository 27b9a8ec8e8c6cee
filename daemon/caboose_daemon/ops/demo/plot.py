"""A small line plot in braille characters, for a terminal."""

import math
from collections.abc import Sequence

DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of a braille cell, by row and column."""


def plot(values: Sequence[float], width: int, height: int) -> list[str]:
    """`height` lines of `width` characters; each column shows the range its values span, so no spike is lost."""
    finite = [v for v in values if math.isfinite(v)]
    if not finite or width < 1 or height < 1:
        return [" " * width for _ in range(height)]
    low, high = min(finite), max(finite)
    span = (high - low) or 1.0
    rows, columns = height * 4, width * 2
    cells = [[0] * width for _ in range(height)]
    previous: int | None = None
    for column in range(columns):
        start = column * len(values) // columns
        stop = max(start + 1, (column + 1) * len(values) // columns)
        bucket = [v for v in values[start:stop] if math.isfinite(v)]
        if not bucket:
            previous = None
            continue
        top = round((high - max(bucket)) / span * (rows - 1))
        bottom = round((high - min(bucket)) / span * (rows - 1))
        if previous is not None:  # join with the column before
            top, bottom = min(top, previous), max(bottom, previous)
        previous = round((high - bucket[-1]) / span * (rows - 1))
        for row in range(top, bottom + 1):
            cells[row // 4][column // 2] |= DOTS[row % 4][column % 2]
    return ["".join(chr(0x2800 + cell) for cell in line) for line in cells]
