"""The steps of a run around one step, from the journal."""

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator
from typing import Any

from caboose_daemon.out.api import json_shapes
from caboose_daemon.store.rows import RowError, read_row
from caboose_daemon.store.step_table import NAMES, SELECTED

MAX_STEPS = 5000
"""Maximum on each side."""


def steps_around(
    connection: sqlite3.Connection, job: str, attempt: int, step: int, before: int, after: int
) -> dict[str, Any]:
    """The steps before and after (attempt, step), oldest first, and the total number on each side."""
    columns = f"SELECT {SELECTED} FROM steps JOIN jobs ON jobs.id = job WHERE name = ? AND "  # noqa: S608 - constants
    counted = "SELECT count(*) FROM steps JOIN jobs ON jobs.id = job WHERE name = ? AND "
    where = (job, attempt, step)
    order = "ORDER BY attempt {0}, step {0} LIMIT ?"
    old = connection.execute(
        f"{columns} (attempt, step) <= (?, ?) {order.format('DESC')}", (*where, min(before, MAX_STEPS))
    ).fetchall()
    new = connection.execute(
        f"{columns} (attempt, step) > (?, ?) {order.format('ASC')}", (*where, min(after, MAX_STEPS))
    ).fetchall()
    (num_before,) = connection.execute(f"{counted} (attempt, step) <= (?, ?)", where).fetchone()
    (num_after,) = connection.execute(f"{counted} (attempt, step) > (?, ?)", where).fetchone()
    return {
        "job": job,
        "num_before": num_before,
        "num_after": num_after,
        "before": list(_shapes(reversed(old))),
        "after": list(_shapes(new)),
    }


def _shapes(rows: Iterable[tuple[Any, ...]]) -> Iterator[json_shapes.Json]:
    """The steps in these rows, without those that cannot be read."""
    for row in rows:
        with contextlib.suppress(RowError):
            yield json_shapes.step(read_row("steps", dict(zip((*NAMES, "bad"), row, strict=True))))
