"""Makes the journal's tables, and upgrades a file of an earlier version; all of it in one transaction."""

import logging
import shutil
import sqlite3
from collections.abc import Iterator
from importlib.resources import files

from caboose_daemon.steps import named
from caboose_daemon.store import step_table
from caboose_daemon.store.database import Database
from caboose_daemon.store.rows import RowError, read_row

logger = logging.getLogger("caboose.daemon")

SCHEMA_VERSION = "8"
UPGRADES = {
    # Had no incidents, and only the first and last finding of an episode.
    "1": ("ALTER TABLE episodes ADD COLUMN worst BLOB", "ALTER TABLE episodes ADD COLUMN told_step INTEGER"),
    # Had no rollbacks.
    "2": (
        "ALTER TABLE attempts ADD COLUMN reason TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE attempts ADD COLUMN start_step INTEGER NOT NULL DEFAULT 0",
    ),
    # Had fewer step columns; missing ones are added on opening.
    "3": (),
    # Had no totals; they start from the rows it still has.
    "4": (),
    # Its sample tables had other names.
    "5": (),
    # Had no digest of what the ranks of an attempt prove their launch with.
    "6": ("ALTER TABLE attempts ADD COLUMN proof TEXT",),
    # Did not know of an attempt whether it was over.
    "7": ("ALTER TABLE attempts ADD COLUMN is_over INTEGER NOT NULL DEFAULT 0",),
}
"""Upgrade from each schema to the next; new tables and step columns are added on opening."""
EVENT_COLUMNS = ("attempt", "step", "time", "kind", "fields")
RENAMED = {"looks": "samples", "closeups": "latest_samples"}
"""Tables by their names before schema 6, and their names now."""
INCREMENTAL = 2
"""SQLite's number for auto_vacuum = INCREMENTAL: freed pages can be given back a few at a time."""
MAX_CONVERTED_BYTES = 128 * 2**20
"""A journal of an earlier version up to this size is rewritten once so that it can shrink (1.5 s on a slow disk).
A larger one keeps its size: what the retention frees is used again."""


def make_tables(database: Database) -> None:
    """Brings a file to the current schema."""
    connection = database.connection
    if not connection.execute("SELECT 1 FROM sqlite_master").fetchone():
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # only before the first table
    connection.execute("PRAGMA journal_mode = WAL")
    with database.transaction(is_synced=True):
        _upgrade(database)
        for statement in _statements((files("caboose_daemon.store") / "schema.sql").read_text()):
            connection.execute(statement)
        connection.execute(step_table.CREATE)
        connection.execute(step_table.CREATE_PARTS)
        is_without_named = not database.columns("named_steps")
        connection.execute(step_table.CREATE_NAMED)
        if is_without_named:
            _name_validations(connection)
        for statement in step_table.missing(database.columns("steps")):
            connection.execute(statement)
        connection.execute("INSERT OR REPLACE INTO meta VALUES ('schema', ?)", (SCHEMA_VERSION,))
    _let_it_shrink(database)


def _upgrade(database: Database) -> None:
    if not database.columns("meta"):
        return
    found = database.connection.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone()
    for version, statements in UPGRADES.items():
        if found is not None and int(version) >= int(found[0]):
            for statement in statements:
                database.connection.execute(statement)
    for old, new in RENAMED.items():
        if database.columns(old) and not database.columns(new):
            database.connection.execute(f"ALTER TABLE {old} RENAME TO {new}")


def _name_validations(connection: sqlite3.Connection) -> None:
    """Makes curves of the validations that an earlier version wrote as events only; one that cannot be read is left."""
    rows = connection.execute(
        "SELECT job, attempt, step, time, kind, fields, max(id) FROM events WHERE kind = ? GROUP BY job, attempt, step",
        (named.VALIDATION,),
    ).fetchall()
    for job, *values, _ in rows:
        try:
            event = read_row("events", dict(zip(EVENT_COLUMNS, values, strict=True)))
        except RowError:
            continue
        for number in named.of_validation(event)[: named.MAX_NAMES]:
            columns = step_table.named_columns(event.attempt, event.step, number)
            connection.execute("INSERT OR REPLACE INTO named_steps VALUES (?, ?, ?, ?, ?, ?)", (job, *columns.values()))


def _statements(script: str) -> Iterator[str]:
    """The statements of a script, one at a time: `executescript` would commit before it begins."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _let_it_shrink(database: Database) -> None:
    """Rewrites a small journal of an earlier version, which cannot give space back otherwise."""
    if database.pragma("auto_vacuum") == INCREMENTAL:
        return
    size = database.pragma("page_count") * database.pragma("page_size")
    if size > MAX_CONVERTED_BYTES or shutil.disk_usage(database.path.parent).free < 3 * size:
        return
    try:
        database.connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        database.connection.execute("VACUUM")
    except sqlite3.Error as error:  # it works as it is
        logger.warning("%s: cannot be rewritten so that it can shrink: %s", database.path, error)
