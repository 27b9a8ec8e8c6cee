"""A real daemon that ends, or copies its journal, at a commit: started in the place of `caboose`.

    CRASH_AT=after:12             SIGKILL after the 12th commit
    CRASH_AT=before:decisions:2   SIGKILL before the 2nd commit with a row of `decisions`
    CRASH_COPIES=DIR              a copy of the journal before and after every commit, and DIR/points.jsonl about them

Design
------
A copy is what a SIGKILL at that moment would leave: SQLite writes with write(2), which outlives the process. It is made
while nobody else can write (`Database.turn`). Before it, what was shown gets a moment to arrive at whoever records it,
so that the copy is compared with all of it; `time` is on the clock that all processes of a machine share.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from caboose_daemon.entry import main
from caboose_daemon.store.database import Database

FILES = ("journal.sqlite", "journal.sqlite-wal", "journal.state")
ARRIVAL_SECONDS = 0.01
WRITTEN = re.compile(r"(?:INSERT(?: OR \w+)? INTO|DELETE FROM) (\w+)")


class Points:
    """Counts commits, and acts at each."""

    def __init__(self, crash_at: str, copies: str) -> None:
        self._copies = Path(copies) if copies else None
        self._moment, _, which = crash_at.partition(":")
        table, _, number = which.rpartition(":")
        self._table, self._number = table, int(number or 0)
        self._num_passed = {"before": 0, "after": 0}
        self._num_copies = 0
        self._lock = threading.Lock()
        self._written: dict[int, set[str]] = {}

    def begin(self, database: Database) -> None:
        """Notes which tables the transactions of a connection write to."""
        tables = self._written[id(database)] = set()
        database.connection.set_trace_callback(lambda sql: tables.update(WRITTEN.findall(sql)))

    def reach(self, moment: str, database: Database) -> None:
        tables = self._written[id(database)]
        with self._lock:
            if not self._table or self._table in tables:
                self._num_passed[moment] += 1
            if self._moment == moment and self._num_passed[moment] == self._number:
                os.kill(os.getpid(), signal.SIGKILL)
            if self._copies is not None:
                self._copy(self._copies, moment, sorted(tables), database.path.parent)
        if moment == "after":
            tables.clear()

    def _copy(self, directory: Path, moment: str, tables: list[str], data: Path) -> None:
        time.sleep(ARRIVAL_SECONDS)
        self._num_copies += 1
        point = {"number": self._num_copies, "moment": moment, "tables": tables, "time": time.monotonic()}
        target = directory / str(self._num_copies)
        target.mkdir(parents=True)
        for name in FILES:
            with contextlib.suppress(FileNotFoundError):
                shutil.copy(data / name, target / name)
        with (directory / "points.jsonl").open("a") as file:
            file.write(json.dumps(point) + "\n")


def install(points: Points) -> None:
    """Puts the points into the place that every commit passes."""
    made = Database.__init__

    def make(database: Database, *arguments: Any, **settings: Any) -> None:
        made(database, *arguments, **settings)
        points.begin(database)

    def after(database: Database) -> None:
        with database.turn:
            points.reach("after", database)

    Database.__init__ = make  # type: ignore[method-assign]
    Database.before_commit = lambda database: points.reach("before", database)  # type: ignore[method-assign]
    Database.after_commit = after  # type: ignore[method-assign]


if __name__ == "__main__":
    install(Points(os.environ.get("CRASH_AT", ""), os.environ.get("CRASH_COPIES", "")))
    sys.exit(main())
