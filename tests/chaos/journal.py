"""What a killed daemon left on its disk."""

import contextlib
import sqlite3
from dataclasses import dataclass
from pathlib import Path

import msgspec

from caboose_daemon.rollback_state.decision import Decision


@dataclass(frozen=True)
class Journal:
    """The rows that an episode looks for."""

    integrity: str
    marks: set[str]
    decisions: list[Decision]
    num_quarantined: int


def read_journal(data: Path) -> Journal:
    """Opens it as the next daemon would."""
    with contextlib.closing(sqlite3.connect(data / "journal.sqlite")) as connection:
        (integrity,) = connection.execute("PRAGMA integrity_check").fetchone()
        marks = {kind for (kind,) in connection.execute("SELECT kind FROM events")}
        bodies = [body for (body,) in connection.execute("SELECT body FROM decisions ORDER BY number")]
        (num_quarantined,) = connection.execute("SELECT count(*) FROM quarantine").fetchone()
    decisions = [msgspec.msgpack.decode(body, type=Decision) for body in bodies]
    return Journal(integrity, marks, decisions, num_quarantined)
