"""Declared events of a run, read from the journal: each once, however many ranks declared it.

The daemon's memory keeps only a run's last events, which validations may fill within an hour. The journal also has a
change declared a week ago.
"""

import sqlite3
from typing import Any

from caboose_daemon.out.api import json_shapes
from caboose_daemon.store.rows import RowError, read_row
from caboose_wire import Event

MAX_EVENTS = 500
COLUMNS = ("attempt", "step", "time", "kind", "fields")


def declared(connection: sqlite3.Connection, job: str) -> list[dict[str, Any]]:
    """The last events except validations, oldest first."""
    rows = connection.execute(
        "SELECT attempt, step, min(time), kind, fields, max(events.id) AS last FROM events "
        "JOIN jobs ON jobs.id = job WHERE name = ? AND kind != 'validation' "
        "GROUP BY attempt, step, kind, fields ORDER BY last DESC LIMIT ?",
        (job, MAX_EVENTS),
    ).fetchall()
    return [json_shapes.event(event) for row in reversed(rows) if (event := _event(row)) is not None]


def _event(row: tuple[Any, ...]) -> Event | None:
    """The event in a row; None if the row cannot be read."""
    try:
        event: Event = read_row("events", dict(zip(COLUMNS, row, strict=False)))
    except RowError:
        return None
    return event
