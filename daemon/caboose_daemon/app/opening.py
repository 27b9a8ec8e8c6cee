"""Opens the daemon's journal and restores its jobs; a damaged one costs what cannot be read of it, not the start.

The order matters: the file is looked at before anything is written to it (`store.opening`), then its tables are made,
then, if a damaged one was kept aside, what can be read of that is copied, then the jobs are restored.
"""

import sqlite3
from pathlib import Path

from caboose_daemon.config import JournalConfig
from caboose_daemon.jobs.pipeline import Pipeline
from caboose_daemon.jobs.state import State
from caboose_daemon.store import history
from caboose_daemon.store.database import JournalError
from caboose_daemon.store.journal import Journal
from caboose_daemon.store.opening import Inspected, inspect, keep_aside
from caboose_daemon.store.salvage import salvage


def open_journal(
    path: Path, config: JournalConfig, state: State, pipeline: Pipeline, now: float, *, has_store: bool = False
) -> tuple[Journal, Inspected]:
    """The open journal, its jobs in `state`; JournalError, in one line, where it must not or cannot be used."""
    inspected = inspect(path, is_strict=config.strict)
    try:
        return _open(path, config, state, pipeline, now, inspected, has_store=has_store), inspected
    except sqlite3.DatabaseError as error:  # beyond the part of a large file that was checked
        if config.strict:
            raise JournalError(f"{path}: {error}; move the file away, or start without --strict-journal") from None
        inspected = Inspected(set_aside=keep_aside(path, str(error)))
    try:
        return _open(path, config, state, pipeline, now, inspected, has_store=has_store), inspected
    except sqlite3.DatabaseError as error:
        raise JournalError(f"{path}: {error}; choose another --data-dir") from None


def _open(
    path: Path,
    config: JournalConfig,
    state: State,
    pipeline: Pipeline,
    now: float,
    inspected: Inspected,
    *,
    has_store: bool,
) -> Journal:
    journal = Journal(
        path, state, max_steps=config.max_steps, retention_days=config.retention_days, has_store=has_store
    )
    try:
        state.journal_set_aside = inspected.wal_copy
        if inspected.set_aside is not None:
            salvage(inspected.set_aside, journal.database)
            state.journal_set_aside = inspected.set_aside.name
        history.restore(path, state, pipeline, now)
    except BaseException:
        state.jobs.clear()
        journal.database.close()
        raise
    return journal
