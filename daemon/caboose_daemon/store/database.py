"""One connection to the journal, and the one place where its transactions are committed.

Design
------
Every write of the product goes through `Database.transaction`: the rows of a turn, an HTTP write, the upgrade of an
older file, the retention. `before_commit` and `after_commit` do nothing; a program that tests crashes replaces them to
end the process at each commit in turn.

SQLite runs in WAL mode. A committed transaction survives the end of the process. With `is_synced` it also survives a
loss of power: the -wal is synced before `transaction` returns, and with it everything that was committed before.

The connections of one process share `turn`, so that they queue for the write lock of SQLite instead of polling for it.
A process outside, such as a backup, is waited for `BUSY_MS` and no longer: the caller may hold the state's lock.
"""

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BUSY_MS = 100
CHECKPOINT_PAGES = 16_384
"""64 MiB: the retention moves the -wal into the file long before; this is for the case that it does not run."""
MODE = 0o600


class JournalError(RuntimeError):
    """The journal cannot be opened; the message names the fix."""


class JournalConnection(sqlite3.Connection):
    """Raises sqlite3.DatabaseError where Python cannot read SQLite's message: it has a name that is not UTF-8."""

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        try:
            return super().execute(*arguments)
        except UnicodeDecodeError as error:
            raise _unreadable(error) from None

    def executemany(self, *arguments: Any) -> sqlite3.Cursor:
        try:
            return super().executemany(*arguments)
        except UnicodeDecodeError as error:
            raise _unreadable(error) from None


def _unreadable(error: UnicodeDecodeError) -> sqlite3.DatabaseError:
    return sqlite3.DatabaseError(error.object.decode("ascii", "backslashreplace"))


def connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    """A connection with the journal's settings; a text that is not UTF-8 is returned as bytes."""
    if read_only:
        connection = sqlite3.connect(
            f"{path.as_uri()}?mode=ro", uri=True, check_same_thread=False, factory=JournalConnection
        )
    else:
        _make_file(path)
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, factory=JournalConnection)
    connection.execute(f"PRAGMA busy_timeout = {2000 if read_only else BUSY_MS}")
    connection.text_factory = _text
    return connection


def _make_file(path: Path) -> None:
    """Makes the file, for its owner only; -wal and -shm get its mode.

    A file that is there is not opened: closing it would release the locks that this process has on it, and another
    process would then take the -wal for a left-over and remove it (https://www.sqlite.org/howtocorrupt.html, 2.2).
    """
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, MODE))


def _text(content: bytes) -> str | bytes:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content


class Database:
    """A connection that writes."""

    def __init__(self, path: Path, turn: "threading.Lock | None" = None) -> None:
        self.path = path
        self.turn = turn or threading.Lock()
        self.connection = connect(path)
        self._is_synced: bool | None = None
        """Whether the connection syncs at every commit; None before the first."""
        self.connection.execute("PRAGMA journal_size_limit = 16777216")
        self.connection.execute("PRAGMA foreign_keys = ON")
        self.connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")

    @contextmanager
    def transaction(self, *, is_synced: bool = False) -> Iterator[sqlite3.Connection]:
        """All that is executed in the block, or nothing; sqlite3.Error if it cannot be committed."""
        with self.turn:
            if is_synced is not self._is_synced:
                self.connection.execute(f"PRAGMA synchronous = {'FULL' if is_synced else 'NORMAL'}")
                self._is_synced = is_synced
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield self.connection
                self.before_commit()
                self.connection.execute("COMMIT")
            except BaseException:
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
                raise
        self.after_commit()

    def before_commit(self) -> None:
        """Called with the transaction complete and not yet committed."""

    def after_commit(self) -> None:
        """Called when a transaction was committed."""

    def pragma(self, name: str) -> int:
        """The value of a setting that is a number."""
        return int(self.connection.execute(f"PRAGMA {name}").fetchone()[0])

    def columns(self, table: str) -> list[str]:
        """A table's column names; empty if there is no such table."""
        return [row[1] for row in self.connection.execute(f"PRAGMA table_info({table})")]

    def close(self) -> None:
        self.connection.close()
