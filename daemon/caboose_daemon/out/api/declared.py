"""Declared events of a run, read from the journal: each once, however many ranks declared it.

The daemon's memory keeps only a run's last events, which validations may fill within an hour. The journal also has a
change declared a week ago.
"""

import sqlite3
from typing import Any

import msgspec

from caboose_daemon.out.api import json_shapes
from caboose_wire import Event

MAX_EVENTS = 500


def declared(connection: sqlite3.Connection, job: str) -> list[dict[str, Any]]:
    """The last events except validations, oldest first."""
    rows = connection.execute(
        "SELECT attempt, step, min(time), kind, fields, max(events.id) AS last FROM events "
        "JOIN jobs ON jobs.id = job WHERE name = ? AND kind != 'validation' "
        "GROUP BY attempt, step, kind, fields ORDER BY last DESC LIMIT ?",
        (job, MAX_EVENTS),
    ).fetchall()
    return [
        json_shapes.event(
            Event(attempt=attempt, step=step, time=time, kind=kind, fields=msgspec.msgpack.decode(fields))
        )
        for attempt, step, time, kind, fields, _ in reversed(rows)
    ]
