"""Caboose's own journal as logs: one for each job in it, with what was declared and where attempts began."""

import sqlite3
from collections import defaultdict
from pathlib import Path

import msgspec
import numpy as np

from caboose_daemon.offline.replay.logs.log import Column, Log, LogError
from caboose_daemon.store.database import connect
from caboose_daemon.store.step_table import NAN_BITS
from caboose_wire import Event

MAGIC = b"SQLite format 3\0"
NAME = "journal.sqlite"
QUANTITIES = ("loss", "grad_norm", "lr", "step_seconds", "data_seconds")


def read_journal(path: Path) -> list[Log]:
    """The jobs of a journal, the oldest first; LogError if it is none, or holds no step."""
    try:
        connection = connect(path.resolve(), read_only=True)
        try:
            jobs = connection.execute("SELECT id, name FROM jobs ORDER BY id").fetchall()
            logs = [_job(connection, path, number, name) for number, name in jobs]
        finally:
            connection.close()
    except (sqlite3.Error, msgspec.MsgspecError) as error:
        raise LogError(f"{path}: not a Caboose journal ({error})") from None
    found = [log for log in logs if len(log.steps)]
    if not found:
        raise LogError(f"{path}: a journal without steps; try again when a job has reported its first one")
    return found


def _job(connection: sqlite3.Connection, path: Path, number: int, name: str) -> Log:
    rows = connection.execute(
        f"SELECT attempt, step, bad, {', '.join(QUANTITIES)} "  # noqa: S608 - constants
        "FROM steps WHERE job = ? ORDER BY attempt, step",
        (number,),
    ).fetchall()
    attempts, steps, bad, *columns = zip(*rows, strict=True) if rows else ((),) * (3 + len(QUANTITIES))
    flags = np.array(bad, dtype=np.int64)
    table = {}
    for quantity, values in zip(QUANTITIES, columns, strict=True):
        is_nan = flags & NAN_BITS.get(quantity, 0) != 0
        array = np.array([np.nan if value is None else value for value in values])
        is_logged = np.array([value is not None for value in values], dtype=np.bool_) | is_nan
        if is_logged.any() or quantity == "loss":
            table[quantity] = Column(array, is_logged)
    launches = np.array(attempts, dtype=np.int64)
    begins = np.flatnonzero(np.diff(launches)) + 1
    return Log(
        file=f"{path}#{name}",
        steps=np.array(steps, dtype=np.int64),
        columns=table,
        restarts=frozenset(begins.tolist()),
        is_stepwise=True,
        events=_events(connection, number, list(zip(attempts, steps, strict=True))),
    )


def _events(connection: sqlite3.Connection, number: int, rows: list[tuple[int, int]]) -> dict[int, tuple[Event, ...]]:
    """What was declared, by the row before which it was."""
    found: dict[int, list[Event]] = defaultdict(list)
    at = 0
    query = "SELECT attempt, step, time, kind, fields FROM events WHERE job = ? ORDER BY attempt, step, id"
    for attempt, step, time, kind, fields in connection.execute(query, (number,)):
        while at < len(rows) - 1 and rows[at] <= (attempt, step):
            at += 1
        event = Event(attempt=attempt, step=step, time=time, kind=kind, fields=msgspec.msgpack.decode(fields))
        found[at].append(event)
    return {row: tuple(events) for row, events in found.items()}
