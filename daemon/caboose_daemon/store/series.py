"""A run's curves, or a window of them, in a bounded number of buckets that keep their extremes.

Design
------
A bucket is `width` neighbouring steps of one attempt. Attempts may overlap in steps (a rollback, a restart from a
checkpoint), so each is read as a separate range of the primary key (job, attempt, step): the cost of a window depends
on the window, not on the run. The width is chosen so that all attempts together have about the requested number of
buckets; buckets begin at multiples of it, so a complete bucket never changes.

Means and extremes use finite numbers only: a step with an infinite loss is counted in `num_bad` and does not blank its
bucket. Throughput is samples over seconds, both summed over the bucket, as in the metrics.
"""

import sqlite3
from collections.abc import Iterator
from typing import Any

from caboose_daemon.store.bucket_cache import BucketCache, Buckets
from caboose_daemon.store.named_series import named_series
from caboose_daemon.store.step_table import CONDENSED, PART_CONDENSED

_BUCKET = (
    f"SELECT {', '.join(f'{sql} AS {name}' for name, sql in CONDENSED.items())} FROM steps "  # noqa: S608 - constants
    "WHERE job = ?1 AND attempt = ?2 AND step BETWEEN ?3 AND ?4"
)
_PARTS = (
    f"SELECT {', '.join(f'{sql} AS {name}' for name, sql in PART_CONDENSED.items())} FROM part_steps "  # noqa: S608
    "WHERE job = ?1 AND attempt = ?2 AND step BETWEEN ?3 AND ?4 GROUP BY part"
)
_PART_NAMES = tuple(PART_CONDENSED)[2:]
_LOWEST, _HIGHEST = 0, 2**63 - 1
LEAST_STABLE = 64
"""Steps of a bucket from which on its width has only a few sizes."""


def series(
    connection: sqlite3.Connection, job: str, points: int, first: int | None = None, last: int | None = None
) -> list[dict[str, Any]]:
    """The steps from `first` to `last`, both included, in about `points` buckets; attempt by attempt, oldest first."""
    return curves(connection, job, points, first, last)[0]


def curves(
    connection: sqlite3.Connection,
    job: str,
    points: int,
    first: int | None = None,
    last: int | None = None,
    cache: BucketCache | None = None,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The steps as in `series`, and the curves of named numbers in the same buckets."""
    found = connection.execute("SELECT id, created FROM jobs WHERE name = ?", (job,)).fetchone()
    if found is None:
        return [], []
    number, created = found
    window = (_LOWEST if first is None else first, _HIGHEST if last is None else last)
    spans = list(_spans(connection, number, *window))
    width = _width(sum(high - low + 1 for _, low, high in spans), points)
    kept = cache if first is None and last is None else None

    def known(kind: str, attempt: int) -> Buckets | None:
        return None if kept is None else kept.of(width, kind, number, created, attempt)

    rows = [
        dict(zip(CONDENSED, values, strict=True))
        for span in spans
        for values in _buckets(connection, number, *span, width, known("steps", span[0]))
        if values[0] is not None
    ]
    _add_parts(connection, number, rows, width)
    return rows, named_series(connection, number, spans, width, lambda attempt: known("named", attempt))


def _width(num_steps: int, points: int) -> int:
    """Steps per bucket. Wide ones come in eight sizes per doubling, so that a growing run rarely changes them."""
    width = max(1, -(-num_steps // points))
    unit = 1 << max(0, width.bit_length() - 4) if width >= LEAST_STABLE else 1
    return -(-width // unit) * unit


def _add_parts(connection: sqlite3.Connection, job: int, rows: list[dict[str, Any]], width: int) -> None:
    """Gives the rows of a job with several models `parts`: the same bucket of each part, by its name."""
    has_table = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'part_steps'").fetchone()
    if not has_table or not connection.execute("SELECT 1 FROM part_steps WHERE job = ? LIMIT 1", (job,)).fetchone():
        return
    for row in rows:
        last = row["step"]
        found = connection.execute(_PARTS, (job, row["attempt"], last - last % width, last))
        parts = {part: dict(zip(_PART_NAMES, values, strict=True)) for part, _, *values in found}
        if parts:
            row["parts"] = parts


def _buckets(
    connection: sqlite3.Connection, job: int, attempt: int, low: int, high: int, width: int, known: Buckets | None
) -> Iterator[tuple[Any, ...]]:
    """The buckets of one attempt; one without steps is all None. `known` has complete ones.

    Each is a range of the key: grouping by `step / width` would sort all rows first, which is slower.
    """
    if width == 1:
        yield from connection.execute(f"{_BUCKET} GROUP BY step", (job, attempt, low, high))
        return
    for start in range(low - low % width, high + 1, width):
        whole = known if low <= start and start + width - 1 < high else None
        if whole is not None and start in whole:
            yield whole[start]
            continue
        edges = (max(low, start), min(high, start + width - 1))
        bucket = connection.execute(_BUCKET, (job, attempt, *edges)).fetchone()
        if whole is not None:
            whole[start] = bucket
        yield bucket


def _spans(connection: sqlite3.Connection, job: int, first: int, last: int) -> Iterator[tuple[int, int, int]]:
    """Each attempt with steps in the window, and its first and last step there; a few lookups each."""
    edge = "SELECT {}(step) FROM steps WHERE job = ?1 AND attempt = ?2 AND step BETWEEN ?3 AND ?4"
    query = f"SELECT ({edge.format('min')}), ({edge.format('max')})"
    attempt = -1
    while True:
        (attempt,) = connection.execute(
            "SELECT min(attempt) FROM steps WHERE job = ? AND attempt > ?", (job, attempt)
        ).fetchone()
        if attempt is None:
            return
        low, high = connection.execute(query, (job, attempt, first, last)).fetchone()
        if low is not None:
            yield attempt, low, high
