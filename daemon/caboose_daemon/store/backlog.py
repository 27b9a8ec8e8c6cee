"""What of the journal a common database does not have yet: a mark for each row that was written since.

Design
------
Triggers set the marks, in the transaction that writes the row: a daemon that is killed at any time knows afterwards
what is to be sent. A row that is written again gets a new mark in place of its old one, so there is never more than one
for each incident, decision and note, and the journal's retention bounds them. What was sent loses its mark, unless the
row was written again in the meantime. `target` is the identity of the database that the marks are about: for another
one everything is marked anew.

Without such a database there are no triggers and no marks.
"""

import sqlite3
import threading
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from caboose_daemon.incidents.episodes import Episode
from caboose_daemon.incidents.incident import Incident
from caboose_daemon.rollback_state.decision import Decision
from caboose_daemon.store.database import Database
from caboose_daemon.store.rows import ROWS, RowError, read_row
from caboose_wire import Event

SOURCES = {"incidents": "number", "decisions": "number", "events": "id"}
"""The tables that are sent, with the column that identifies a row of a job."""
LEFT_OUT = {"events": "NEW.kind != 'validation'"}
"""Which rows get a mark; validations are curves, not notes."""
TABLE = """
CREATE TABLE IF NOT EXISTS unsent (
    mark INTEGER PRIMARY KEY AUTOINCREMENT,
    source TEXT NOT NULL,
    job INTEGER NOT NULL,
    number INTEGER NOT NULL,
    UNIQUE (source, job, number)
)"""


@dataclass(frozen=True)
class Unsent:
    """A row that is to be sent; `content` is None where the row is gone or cannot be read."""

    mark: int
    job: str
    content: Incident | Decision | Event | None


def mark_changes(database: Database) -> None:
    """From now on each written row gets a mark."""
    with database.transaction() as connection:
        connection.execute(TABLE)
        for source, column in SOURCES.items():
            condition = f"WHEN {LEFT_OUT[source]} " if source in LEFT_OUT else ""
            connection.execute(
                f"CREATE TRIGGER IF NOT EXISTS unsent_{source} AFTER INSERT ON {source} {condition}BEGIN "  # noqa: S608
                f"INSERT OR REPLACE INTO unsent (source, job, number) VALUES ('{source}', NEW.job, NEW.{column}); END"
            )
        connection.execute("INSERT OR IGNORE INTO meta VALUES ('id', ?)", (uuid.uuid4().hex,))


def forget_changes(database: Database) -> None:
    """No database is configured: there are no marks, and a later one gets everything."""
    if not database.columns("unsent"):
        return
    with database.transaction() as connection:
        for source in SOURCES:
            connection.execute(f"DROP TRIGGER IF EXISTS unsent_{source}")
        connection.execute("DROP TABLE unsent")
        connection.execute("DELETE FROM meta WHERE key = 'target'")


class Backlog:
    """The marks of a journal, on a connection of their own; all calls are made by one thread."""

    def __init__(self, path: Path, turn: threading.Lock) -> None:
        self._database = Database(path, turn)

    @property
    def journal(self) -> str:
        """The identity of this journal among those that write into one database."""
        return self._meta("id")

    def aim(self, target: str) -> None:
        """Marks everything, unless the marks are about this database already."""
        if self._meta("target") == target:
            return
        with self._database.transaction() as connection:
            for source, column in SOURCES.items():
                which = LEFT_OUT.get(source, "1").replace("NEW.", "")
                connection.execute(
                    "INSERT OR IGNORE INTO unsent (source, job, number) "  # noqa: S608 - constants
                    f"SELECT '{source}', job, {column} FROM {source} WHERE {which}"
                )
            connection.execute("INSERT OR REPLACE INTO meta VALUES ('target', ?)", (target,))

    def oldest(self, num: int) -> list[Unsent]:
        """The rows that have waited longest."""
        rows = self._query(
            "SELECT mark, source, unsent.job, number, name FROM unsent LEFT JOIN jobs ON jobs.id = unsent.job "
            "ORDER BY mark LIMIT ?",
            num,
        )
        return [
            Unsent(mark, name or "", self._content(source, job, number)) for mark, source, job, number, name in rows
        ]

    def sent(self, marks: Sequence[int]) -> None:
        """These rows are in the database."""
        with self._database.transaction() as connection:
            connection.executemany("DELETE FROM unsent WHERE mark = ?", [(mark,) for mark in marks])

    @property
    def size(self) -> int:
        """How many rows wait."""
        return int(self._query("SELECT count(*) FROM unsent")[0][0])

    def close(self) -> None:
        self._database.close()

    def _content(self, source: str, job: int, number: int) -> Incident | Decision | Event | None:
        try:
            row = next(self._rows(source, f"{SOURCES[source]} = ?2", job, number), None)
        except RowError:
            return None
        return self._whole(job, *row) if source == "incidents" and row is not None else row

    def _whole(self, job: int, ids: Sequence[int], incident: Incident) -> Incident | None:
        """The incident with its episodes; None where the retention has deleted them."""
        found: list[Episode] = []
        for number in ids:
            try:
                found += self._rows("episodes", "id = ?2", job, number)
            except RowError:  # the incident goes on without it, as after a restart
                continue
        return msgspec.structs.replace(incident, episodes=tuple(found)) if found else None

    def _rows(self, table: str, which: str, job: int, number: int) -> Iterator[Any]:
        names = ROWS[table].__struct_fields__
        query = f"SELECT {', '.join(names)} FROM {table} WHERE job = ?1 AND {which}"  # noqa: S608 - constants
        for row in self._query(query, job, number):
            yield read_row(table, dict(zip(names, row, strict=True)))

    def _query(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._database.connection.execute(query, values).fetchall()

    def _meta(self, key: str) -> str:
        rows = self._query("SELECT value FROM meta WHERE key = ?", key)
        return str(rows[0][0]) if rows else ""


def copy_identity(old: sqlite3.Connection, database: Database) -> None:
    """A fresh journal goes on as the damaged one that its rows are copied from, where that is legible."""
    rows = old.execute("SELECT key, value FROM meta WHERE key = 'id'").fetchall()
    with database.transaction() as connection:
        connection.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", rows)
