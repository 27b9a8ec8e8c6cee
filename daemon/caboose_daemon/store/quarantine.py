"""Rows of the journal that cannot be read: moved to the table `quarantine`, so that they cost nothing but themselves.

Design
------
A restore collects the rows it cannot read and moves them in one transaction, afterwards. A row of `jobs` is noted and
stays, because all rows of the job refer to it: the job is left out at this and at every later start, or, if only its
time of creation is bad, gets a new one. A journal that is only read, or that cannot be written, is restored without its
bad rows all the same.
"""

import json
import logging
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from caboose_daemon.format import plural
from caboose_daemon.store.database import Database
from caboose_daemon.store.rows import KEYS

logger = logging.getLogger("caboose.daemon")
MAX_REASON = 500


@dataclass(frozen=True)
class BadRow:
    """A row that cannot be read."""

    table: str
    values: Mapping[str, Any]
    """All its columns."""
    reason: str
    repair: Mapping[str, Any] | None = None
    """Columns that make the row of a job readable again; None to set it aside."""

    @property
    def key(self) -> str:
        return json.dumps([_shown(self.values[name]) for name in KEYS[self.table]])


def set_aside(database: Database, rows: list[BadRow], now: float) -> None:
    """Moves these rows to the table `quarantine`."""
    if not rows:
        return
    kinds = sorted({row.table for row in rows})
    logger.error(
        "%s: %s of %s cannot be read, moved to the table quarantine; the first: %s %s: %s",
        *(database.path, plural(len(rows), "row"), ", ".join(kinds)),
        *(rows[0].table, rows[0].key, rows[0].reason[:MAX_REASON]),
    )
    try:
        with database.transaction(is_synced=True) as connection:
            for row in rows:
                _move(connection, row, now)
    except sqlite3.Error as error:
        logger.error("%s: the rows stay where they are: %s", database.path, error)


def num_set_aside(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT count(*) FROM quarantine").fetchone()[0])


def noted_jobs(connection: sqlite3.Connection) -> set[int]:
    """The ids of jobs that are set aside as a whole; empty in a journal of an earlier version."""
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'quarantine'").fetchone():
        return set()
    keys = connection.execute("SELECT key FROM quarantine WHERE source = 'jobs'").fetchall()
    return {json.loads(key)[0] for (key,) in keys}


def _move(connection: sqlite3.Connection, row: BadRow, now: float) -> None:
    body = msgspec.msgpack.encode(dict(row.values))
    connection.execute(
        "INSERT OR REPLACE INTO quarantine (source, key, reason, time, body) VALUES (?, ?, ?, ?, ?)",
        (f"{row.table} (repaired)" if row.repair else row.table, row.key, row.reason[:MAX_REASON], now, body),
    )
    names = KEYS[row.table]
    if row.repair is not None:
        for column, value in row.repair.items():
            connection.execute(f"UPDATE {row.table} SET {column} = ? WHERE id = ?", (value, row.values["id"]))  # noqa: S608
    elif row.table != "jobs":
        where = " AND ".join(f"{name} IS ?" for name in names)
        connection.execute(f"DELETE FROM {row.table} WHERE {where}", [row.values[name] for name in names])  # noqa: S608


def _shown(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else value
