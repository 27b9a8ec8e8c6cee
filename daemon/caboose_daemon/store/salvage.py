"""Copies what can still be read of a damaged journal into the fresh one.

Design
------
Table by table, the small ones that matter most first: each is read from its newest row back to the first page that
cannot be read, and then from its oldest. The steps, which are most of a journal, come last. All of it is bounded by
`SALVAGE_SECONDS`. Rows are copied by column name and not interpreted; the restore checks them as always.
"""

import contextlib
import itertools
import logging
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from caboose_daemon.store.backlog import copy_identity
from caboose_daemon.store.database import Database, connect
from caboose_daemon.store.rows import KEYS

logger = logging.getLogger("caboose.daemon")
SALVAGE_SECONDS = 10.0
BATCH = 1000
ORDER = (
    *("jobs", "attempts", "members", "totals", "descriptions", "incidents", "episodes", "decisions", "ledger"),
    *("events", "latest_samples", "last_reports", "quarantine", "samples", "sample_facts"),
    *("steps", "part_steps", "named_steps"),
)


def salvage(damaged: Path, database: Database) -> int:
    """The number of rows that were copied."""
    deadline = time.monotonic() + SALVAGE_SECONDS
    num = 0
    try:
        old = connect(damaged, read_only=True)
    except sqlite3.Error:
        return 0
    try:
        with contextlib.suppress(sqlite3.DatabaseError):
            copy_identity(old, database)
        for table in ORDER:
            num += _copy(old, database, table, deadline)
    except sqlite3.Error as error:
        logger.error("%s: cannot be written while rows are copied into it: %s", database.path, error)
    finally:
        old.close()
    if num:
        logger.warning("%d rows of %s were copied into the fresh journal", num, damaged.name)
    return num


def _copy(old: sqlite3.Connection, database: Database, table: str, deadline: float) -> int:
    try:
        there = {row[1] for row in old.execute(f"PRAGMA table_info({table})")}
    except sqlite3.Error:
        return 0
    names = [name for name in database.columns(table) if name in there]
    if not names:
        return 0
    columns = ", ".join(names)
    insert = f"INSERT OR IGNORE INTO {table} ({columns}) VALUES ({', '.join('?' * len(names))})"  # noqa: S608
    keys = KEYS.get(table, ("id",))
    num = 0
    for direction in ("DESC", "ASC"):
        order = ", ".join(f"{key} {direction}" for key in keys)
        rows = _Readable(old, f"SELECT {columns} FROM {table} ORDER BY {order}")  # noqa: S608
        each = iter(rows)
        while time.monotonic() < deadline and (batch := list(itertools.islice(each, BATCH))):
            with database.transaction() as connection:
                num += sum(_insert(connection, insert, row) for row in batch)
        if not rows.has_failed:
            break
    return num


class _Readable:
    """The rows of a query, up to the first that cannot be read."""

    def __init__(self, old: sqlite3.Connection, query: str) -> None:
        self._old = old
        self._query = query
        self.has_failed = False

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        try:
            yield from self._old.execute(self._query)
        except (sqlite3.Error, OverflowError):
            self.has_failed = True


def _insert(connection: sqlite3.Connection, sql: str, row: tuple[Any, ...]) -> int:
    try:
        return connection.execute(sql, row).rowcount
    except (sqlite3.IntegrityError, sqlite3.InterfaceError, sqlite3.ProgrammingError):
        return 0  # its job could not be read
