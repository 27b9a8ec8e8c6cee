"""Reads the journal: jobs for a restarted daemon and for commands, curves and samples for the page."""

import sqlite3
from pathlib import Path
from typing import Any

from caboose_daemon.jobs.job import Job
from caboose_daemon.jobs.pipeline import Pipeline
from caboose_daemon.jobs.state import State
from caboose_daemon.store.bucket_cache import BucketCache
from caboose_daemon.store.database import Database, JournalError, connect
from caboose_daemon.store.quarantine import num_set_aside, set_aside
from caboose_daemon.store.restore import MakeAttempt, restore_jobs
from caboose_daemon.store.rows import RowError, read_row
from caboose_daemon.store.schema import SCHEMA_VERSION
from caboose_daemon.store.series import curves, series


def restore(path: Path, state: State, pipeline: Pipeline, now: float) -> None:
    """Restores the jobs of a journal; rows that cannot be read are set aside. sqlite3.DatabaseError: it is damaged."""
    database = Database(path)
    try:
        found = restore_jobs(database.connection, pipeline.make_attempt, now)
        state.jobs |= {job.name: job for job in found.jobs}
        set_aside(database, found.bad, now)
        state.journal_quarantined = num_set_aside(database.connection)
    finally:
        database.close()


def read_jobs(path: Path, make_attempt: MakeAttempt, now: float) -> list[Job]:
    """The jobs of a journal that may be in use, the most recent first; read-only, without rows that cannot be read."""
    try:
        connection = connect(path.resolve(), read_only=True)
        try:
            (version,) = connection.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone() or ("",)
            if version != SCHEMA_VERSION:
                raise JournalError(
                    f"{path}: written by another version (schema {version}, this one reads {SCHEMA_VERSION}); "
                    "start a daemon of this version on it once to upgrade it"
                )
            return restore_jobs(connection, make_attempt, now).jobs
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise JournalError(f"{path}: not a Caboose journal ({error})") from None


class HistoryReader:
    """Reads curves and samples for the page, on its own connection."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.connection = connect(path, read_only=True)
        self._cache = BucketCache()

    def series(self, job: str, points: int, first: int | None = None, last: int | None = None) -> list[dict[str, Any]]:
        """The job's steps from `first` to `last` in about `points` buckets that keep every spike."""
        return series(self.connection, job, points, first, last)

    def curves(
        self, job: str, points: int, first: int | None = None, last: int | None = None
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The same, and the curves of the user's metrics, validations and parameter groups."""
        return curves(self.connection, job, points, first, last, self._cache)

    def latest_sample(self, job: str) -> dict[str, Any] | None:
        """The job's last sample of its layers; None if there is none."""
        if not self.connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'latest_samples'").fetchone():
            return None
        query = "SELECT body FROM latest_samples JOIN jobs ON jobs.id = latest_samples.job WHERE jobs.name = ?"
        row = self.connection.execute(query, (job,)).fetchone()
        try:
            return None if row is None else dict(read_row("latest_samples", {"body": row[0]}))
        except RowError:
            return None

    def close(self) -> None:
        self.connection.close()
