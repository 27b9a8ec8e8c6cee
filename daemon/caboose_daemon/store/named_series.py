"""The curves of named numbers: the user's metrics, validations, and several parameter groups (see `steps.named`).

Design
------
A job may have no such numbers, or a few in every step. They are read in the same buckets as the steps, all names of a
bucket at once: the key begins with attempt and step, so a window costs what it holds. Columns instead of rows, because
a name would be repeated a thousand times.
"""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from caboose_daemon.steps.named import MAX_NAMES, SOURCES
from caboose_daemon.store.bucket_cache import Buckets
from caboose_daemon.store.step_table import NAMED_CONDENSED

Known = Callable[[int], Buckets | None]
MAX_SERIES = MAX_NAMES * len(SOURCES)
_BUCKET = (
    f"SELECT {', '.join(f'{sql} AS {name}' for name, sql in NAMED_CONDENSED.items())} FROM named_steps "  # noqa: S608
    "WHERE job = ?1 AND attempt = ?2 AND step BETWEEN ?3 AND ?4 GROUP BY source, name"
)
_EDGE = "SELECT {}(step) FROM named_steps WHERE job = ?1 AND attempt = ?2 AND step BETWEEN ?3 AND ?4"
_EDGES = f"SELECT ({_EDGE.format('min')}), ({_EDGE.format('max')})"
_VALUES = tuple(NAMED_CONDENSED)[2:]


def named_series(
    connection: sqlite3.Connection, job: int, spans: Sequence[tuple[int, int, int]], width: int, known: Known
) -> list[dict[str, Any]]:
    """The curves within these (attempt, first step, last step), in buckets of `width` steps, by source and name.

    `known` returns what is kept of an attempt.
    """
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'named_steps'").fetchone():
        return []  # a journal of an earlier version that is only read
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for attempt, low, high in spans:
        for source, name, *values in _buckets(connection, job, attempt, low, high, width, known(attempt)):
            curve = found.get((source, name))
            if curve is None:
                if len(found) >= MAX_SERIES:
                    continue
                curve = {"source": source, "name": name, "attempt": [], **{column: [] for column in _VALUES}}
                found[source, name] = curve
            curve["attempt"].append(attempt)
            for column, value in zip(_VALUES, values, strict=True):
                curve[column].append(value)
    return [found[key] for key in sorted(found, key=lambda key: (SOURCES.index(key[0]), key[1]))]


def _buckets(
    connection: sqlite3.Connection, job: int, attempt: int, low: int, high: int, width: int, known: Buckets | None
) -> Iterator[tuple[Any, ...]]:
    first, last = connection.execute(_EDGES, (job, attempt, low, high)).fetchone()
    if first is None:
        return
    for start in range(first - first % width, last + 1, width):
        # A validation is declared a moment after its step, so the newest bucket before the end may still change.
        whole = known if low <= start and start + 2 * width - 1 < high else None
        if whole is not None and start in whole:
            yield from whole[start]
            continue
        edges = (max(low, start), min(high, start + width - 1))
        rows = connection.execute(_BUCKET, (job, attempt, *edges)).fetchall()
        if whole is not None:
            whole[start] = rows
        yield from rows
