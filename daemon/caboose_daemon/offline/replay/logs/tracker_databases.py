"""SQLite files of MLflow (`mlflow.db`) and of Trackio (`PROJECT.db`), read without these libraries.

Design
------
MLflow keeps a row for each value, Trackio a JSON object for each call of `log`. Both keep many runs in one file; the
log of each has its name behind a colon. Opened for reading only, so that a tracker that writes is not disturbed.
"""

import json
import math
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from caboose_daemon.offline.replay.logs.json_text import table_of_rows
from caboose_daemon.offline.replay.logs.log import LogError
from caboose_daemon.offline.replay.logs.scalars import table_of_scalars
from caboose_daemon.offline.replay.logs.table import Table
from caboose_daemon.store.database import connect

MLFLOW_DB = "mlflow.db"
"""The name of MLflow's own file in the directory of a project."""
MLFLOW = frozenset({"run_uuid", "key", "value", "timestamp", "step", "is_nan"})
TRACKIO = frozenset({"run_name", "timestamp", "step", "metrics"})
"""Columns of the table `metrics` of each."""
MAX_RUNS = 10_000


def is_of_tracker(path: Path) -> bool:
    """Whether this database of SQLite is one of MLflow or Trackio."""
    try:
        connection = connect(path.resolve(), read_only=True)
        try:
            columns = {row[1] for row in connection.execute("PRAGMA table_info(metrics)")}
        finally:
            connection.close()
    except sqlite3.Error:
        return False
    return columns >= MLFLOW or columns >= TRACKIO


def tables_of(path: Path) -> dict[str, Table] | None:
    """The table of each run, by the run's name, the oldest first; None if it is no tracker's file."""
    try:
        connection = connect(path.resolve(), read_only=True)
        try:
            columns = {row[1] for row in connection.execute("PRAGMA table_info(metrics)")}
            if columns >= MLFLOW:
                return dict(_of_mlflow(connection, path))
            return dict(_of_trackio(connection, path)) if columns >= TRACKIO else None
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise LogError(f"{path}: a database that cannot be read ({error})") from None


def _of_mlflow(connection: sqlite3.Connection, path: Path) -> Iterator[tuple[str, Table]]:
    runs = "SELECT run_uuid, name FROM runs ORDER BY start_time LIMIT ?"
    for number, name in connection.execute(runs, (MAX_RUNS,)).fetchall():
        query = "SELECT step, key, value, is_nan FROM metrics WHERE run_uuid = ? ORDER BY timestamp, rowid"
        rows = connection.execute(query, (number,)).fetchall()
        if rows:
            steps, keys, values, are_nan = zip(*rows, strict=True)
            found = [math.nan if is_nan else value for value, is_nan in zip(values, are_nan, strict=True)]
            yield name or number, table_of_scalars(path, list(steps), list(keys), found)


def _of_trackio(connection: sqlite3.Connection, path: Path) -> Iterator[tuple[str, Table]]:
    names = connection.execute(
        "SELECT run_name FROM metrics GROUP BY run_name ORDER BY min(id) LIMIT ?", (MAX_RUNS,)
    ).fetchall()
    for (name,) in names:
        query = "SELECT step, metrics FROM metrics WHERE run_name = ? ORDER BY id"
        rows = [{**_numbers(text), "step": step} for step, text in connection.execute(query, (name,))]
        yield name, table_of_rows(path, rows, lambda row: f"row {row + 1}")


def _numbers(text: str) -> dict[str, Any]:
    """Of one call of `log`; media are objects, which are left out."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return {key: value for key, value in found.items() if not isinstance(value, dict | list)}
