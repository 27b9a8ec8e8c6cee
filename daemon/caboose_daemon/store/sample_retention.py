"""How long a sample is kept in the journal: bounded in number and in bytes.

Design
------
The last 128 samples of a job are always kept. Of the older ones every second, fourth, eighth, ... is kept, counted from
the job's first sample, as many as fit: an old history is sparse but even, however long the run. (Halving only the
oldest each time would leave a handful for the first nine tenths of a long run.) Whole samples are dropped; a kept one
is never an average. Samples at which a gradient first was not finite are kept before others. The choice depends on the
samples' numbers alone, so it is reproducible.

The retention asks for the superfluous samples of a job within a second after a new one. No body is read, and about 130
go at a time.
"""

import sqlite3
from collections.abc import Iterable, Sequence

NUM_NEWEST = 128
MAX_SAMPLES = 512
NUM_OLDER = 256
"""Maximum older samples left after thinning."""
MAX_BYTES = 64 * 2**20
"""Per job; fits `NUM_NEWEST` samples of the largest model."""
NUM_ONSETS = 64

Row = tuple[int, int, int]
"""Number, is_onset, bytes."""


def superfluous_of(connection: sqlite3.Connection, job: str) -> list[tuple[int, int]]:
    """The keys of the samples of a job that need not be kept: the job's id and the sample's number."""
    found = connection.execute("SELECT id FROM jobs WHERE name = ?", (job,)).fetchone()
    if found is None:
        return []
    rows = connection.execute(
        "SELECT number, is_onset, length(body) FROM samples WHERE job = ? ORDER BY number", found
    ).fetchall()
    return [(found[0], number) for number in superfluous(rows)]


def superfluous(rows: Sequence[Row]) -> list[int]:
    """The numbers of the samples to delete, in order."""
    if len(rows) <= MAX_SAMPLES and _bytes(rows) <= MAX_BYTES:
        return []
    older, room = rows[:-NUM_NEWEST], MAX_BYTES - _bytes(rows[-NUM_NEWEST:])
    onsets = [number for number, is_onset, _ in older if is_onset][-NUM_ONSETS:]
    for spared in (set(onsets), set[int]()):
        stride = 1
        while stride < 2 * rows[-1][0]:
            kept = [row for row in older if (row[0] - 1) % stride == 0 or row[0] in spared]
            if len(kept) <= NUM_OLDER and _bytes(kept) <= room:
                staying = {number for number, _, _ in kept}
                return [number for number, _, _ in older if number not in staying]
            stride *= 2
    return [number for number, _, _ in older]


def _bytes(rows: Iterable[Row]) -> int:
    return sum(size for _, _, size in rows)
