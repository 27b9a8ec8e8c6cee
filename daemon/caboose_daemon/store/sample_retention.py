"""How long a sample is kept in the journal: bounded in number and in bytes.

Design
------
The last 128 samples of a job are always kept. Of the older ones every second, fourth, eighth, ... is kept, counted from
the job's first sample, as many as fit: an old history is sparse but even, however long the run. (Halving only the
oldest each time would leave a handful for the first nine tenths of a long run.) Whole samples are dropped; a kept one
is never an average. Samples at which a gradient first was not finite are kept before others. The choice depends on the
samples' numbers alone, so it is reproducible.

`thin` runs after every new sample in the same transaction. It reads no body and deletes in batches of about 130.
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


def thin(connection: sqlite3.Connection, jobs: Iterable[str]) -> None:
    """Deletes the superfluous samples of these jobs."""
    for job in jobs:
        found = connection.execute("SELECT id FROM jobs WHERE name = ?", (job,)).fetchone()
        rows = connection.execute(
            "SELECT number, is_onset, length(body) FROM samples WHERE job = ? ORDER BY number", found or (None,)
        ).fetchall()
        gone = superfluous(rows)
        connection.executemany("DELETE FROM samples WHERE job = ? AND number = ?", [(*found, n) for n in gone])


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
