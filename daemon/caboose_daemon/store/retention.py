"""Removes what the journal no longer needs to keep, and gives the space back.

Design
------
Runs on its own thread and connection, so that neither the loop nor a reader waits for it. What to delete is found by
reading, without a lock; it is deleted in transactions of at most `BATCH` rows, with a pause after each, so that the
loop's next commit waits for one of them at most. Freed pages go back to the file system in the same way. The thread
also moves the -wal into the file, which waits for the disk, and finishes the check of a file that is too large for the
start.

`advance` does all that is due and returns; the thread calls it every second, a test calls it by itself. What is due is
noted by the journal: steps written, jobs with new samples. A sweep is due every `SWEEP_EVERY` steps, and
`SWEEP_SECONDS` after the last one, which the journal remembers: the days of the retention count without new steps too.
"""

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from caboose_daemon.jobs.state import State
from caboose_daemon.store import sample_retention
from caboose_daemon.store.database import Database, connect
from caboose_daemon.store.opening import PROGRESS_STEPS, Damaged, check_pages

logger = logging.getLogger("caboose.daemon")

SWEEP_EVERY = 20_000
"""Steps written between two sweeps."""
SWEEP_SECONDS = 3600.0
EVERY_SECONDS = 1.0
BATCH = 500
"""Rows, or pages, of one transaction: a few milliseconds."""
PAUSE_SECONDS = 0.02
MAX_WAL_BYTES = 4 * 2**20
CHECKPOINT_SECONDS = 10.0
CHILDREN = (
    "samples",
    "part_steps",
    "named_steps",
    "sample_facts",
    "events",
    "members",
    "episodes",
    "incidents",
    "decisions",
    "ledger",
    "descriptions",
    "attempts",
)
"""Tables whose rows go with their job, the large ones first."""


class Retention:
    """Keeps a journal within its limits."""

    def __init__(
        self, path: Path, turn: threading.Lock, state: State, *, max_steps: int, retention_days: float
    ) -> None:
        self._path = path
        self._turn = turn
        self._state = state
        self._max_steps = max_steps
        self._seconds = retention_days * 86_400.0
        self._num_steps = 0
        self._next_sweep: float | None = None
        self._sampled: set[str] = set()
        self._wal_bytes = 0
        self._next_checkpoint = 0.0
        self._lock = threading.Lock()
        """Guards what is noted."""
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._database: Database | None = None

    def note(self, num_steps: int, sampled: Sequence[str]) -> None:
        """The journal has written so many steps, and samples of these jobs."""
        with self._lock:
            self._num_steps += num_steps
            self._sampled.update(sampled)

    def start(self, clock: Callable[[], float], *, is_checked: bool = True) -> None:
        """Begins the thread; `is_checked`: whether the pages of the file were all checked at the start."""
        self._thread = threading.Thread(target=self._run, args=(clock, is_checked), name="caboose-retention")
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread after its current transaction, and closes the connection."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(timeout=5)
        if self._database is not None:
            self._database.close()
            self._database = None

    def _run(self, clock: Callable[[], float], is_checked: bool) -> None:
        if not is_checked:
            self._check_pages()
        failure = ""
        while not self._ending.wait(EVERY_SECONDS):
            try:
                self.advance(clock())
                failure = ""
            except Exception as error:  # noqa: BLE001 - a full disk, mostly; the daemon must not run on without it
                if str(error) != failure:
                    logger.warning("the journal's retention failed and is tried again: %r", error)
                failure = str(error)

    def advance(self, now: float) -> None:
        """Does what is due; sqlite3.Error if the journal cannot be written."""
        if self._database is None:
            self._database = Database(self._path, self._turn)
            self._next_sweep = _last_sweep(self._database, now) + SWEEP_SECONDS
        database = self._database
        assert self._next_sweep is not None, "set with the connection"
        with self._lock:
            sampled, self._sampled = self._sampled, set()
            is_due = self._num_steps >= SWEEP_EVERY or now >= self._next_sweep
            if is_due:
                self._num_steps = 0 if self._num_steps >= SWEEP_EVERY else self._num_steps
                self._next_sweep = now + SWEEP_SECONDS
        try:
            for job in sampled:
                self._delete(database, "samples", sample_retention.superfluous_of(database.connection, job))
            if is_due:
                self._sweep(database, now)
                self._give_back(database)
            self._checkpoint(database, now)
        except sqlite3.Error:
            with self._lock:
                self._sampled |= sampled
                self._next_sweep = now + 10 * EVERY_SECONDS if is_due else self._next_sweep
            raise

    def _sweep(self, database: Database, now: float) -> None:
        oldest = now - self._seconds
        with database.transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO meta VALUES ('swept', ?)", (str(now),))
        for (number,) in database.connection.execute("SELECT id FROM jobs").fetchall():
            self._delete_selected(
                database,
                "steps",
                "job = ?1 AND (time < ?2 OR (attempt, step) < ("
                "SELECT attempt, step FROM steps WHERE job = ?1 ORDER BY attempt DESC, step DESC LIMIT 1 OFFSET ?3))",
                (number, oldest, self._max_steps - 1),
            )
            for table in ("part_steps", "named_steps", "sample_facts"):
                self._delete_selected(
                    database,
                    table,
                    "job = ?1 AND (attempt, step) < (SELECT attempt, step FROM steps WHERE job = ?1 "
                    "ORDER BY attempt, step LIMIT 1)",
                    (number,),
                )
        self._delete_selected(database, "events", "time < ?", (oldest,))
        self._delete_selected(database, "samples", "time < ?", (oldest,))
        self._delete_jobs(database, oldest)
        self._delete_selected(database, "episodes", "is_open = 0 AND last_time < ?", (oldest,))
        self._delete_selected(database, "incidents", "closed_time < ?", (oldest,))
        self._delete_selected(database, "decisions", "time < ?", (oldest,))
        self._delete_selected(database, "quarantine", "time < ?", (oldest,))

    def _delete_jobs(self, database: Database, oldest: float) -> None:
        """Jobs without steps that began before the retention. One that reports again just now is not deleted."""
        is_over = (
            "id NOT IN (SELECT job FROM steps) AND id NOT IN (SELECT job FROM attempts WHERE began >= ?1) "
            "AND id NOT IN (SELECT job FROM members WHERE last_seen >= ?1)"
        )
        found = database.connection.execute(f"SELECT id FROM jobs WHERE {is_over}", (oldest,)).fetchall()  # noqa: S608
        for (number,) in found:
            for table in CHILDREN[:5]:
                self._delete_selected(database, table, "job = ?", (number,))
            with database.transaction() as connection:
                connection.execute(f"DELETE FROM jobs WHERE id = ?2 AND {is_over}", (oldest, number))  # noqa: S608

    def _delete_selected(self, database: Database, table: str, where: str, values: tuple[Any, ...]) -> None:
        """Deletes rows a few at a time."""
        names = ", ".join(_keys(database, table))
        query = f"SELECT {names} FROM {table} WHERE {where} LIMIT {BATCH}"  # noqa: S608 - constants
        while not self._ending.is_set():
            keys = database.connection.execute(query, values).fetchall()
            if not keys:
                return
            self._delete(database, table, keys)

    def _delete(self, database: Database, table: str, keys: Sequence[tuple[Any, ...]]) -> None:
        names = _keys(database, table)
        sql = f"DELETE FROM {table} WHERE {' AND '.join(f'{name} IS ?' for name in names)}"  # noqa: S608 - constants
        for batch in _batches(keys):
            with database.transaction() as connection:
                connection.executemany(sql, batch)
            self._ending.wait(PAUSE_SECONDS)

    def _give_back(self, database: Database) -> None:
        """Returns free pages to the file system; nothing in a large file of an earlier version (see `schema`)."""
        while not self._ending.is_set():
            free = database.pragma("freelist_count")
            if free <= 2 * BATCH:  # they are used again soon
                return
            with database.transaction() as connection:
                connection.execute(f"PRAGMA incremental_vacuum({BATCH})").fetchall()
            if database.pragma("freelist_count") >= free:
                return
            self._ending.wait(PAUSE_SECONDS)

    def _checkpoint(self, database: Database, now: float) -> None:
        """Moves a long -wal into the file: most of it beside the writer, the rest while the writer waits.

        After that SQLite writes the -wal from its start again. Its size does not fall, so it is moved again when it
        grows, and every few seconds.
        """
        wal = Path(f"{self._path}-wal")
        size = wal.stat().st_size if wal.exists() else 0
        if size < MAX_WAL_BYTES or (size <= self._wal_bytes and now < self._next_checkpoint):
            return
        self._wal_bytes, self._next_checkpoint = size, now + CHECKPOINT_SECONDS
        database.connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        with self._turn:
            database.connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()

    def _check_pages(self) -> None:
        """Finishes the check of a large file, at its own pace."""
        connection = connect(self._path, read_only=True)
        connection.set_progress_handler(lambda: self._ending.wait(0.001), PROGRESS_STEPS)
        try:
            check_pages(connection)
        except (Damaged, sqlite3.DatabaseError) as error:
            if not self._ending.is_set():
                logger.error("%s is damaged (%s); at the next start it is kept aside", self._path, error)
                self._state.journal_damage = str(error)
        finally:
            connection.close()


def _last_sweep(database: Database, now: float) -> float:
    """When the journal was swept last; now where it never was, or the clock has gone back since."""
    row = database.connection.execute("SELECT value FROM meta WHERE key = 'swept'").fetchone()
    try:
        return now if row is None else min(now, float(row[0]))
    except ValueError:
        return now


def _keys(database: Database, table: str) -> list[str]:
    rows = database.connection.execute(f"PRAGMA table_info({table})").fetchall()
    return [row[1] for row in sorted(rows, key=lambda row: row[5]) if row[5]]


def _batches(keys: Sequence[tuple[Any, ...]]) -> Iterator[Sequence[tuple[Any, ...]]]:
    for start in range(0, len(keys), BATCH):
        yield keys[start : start + BATCH]
