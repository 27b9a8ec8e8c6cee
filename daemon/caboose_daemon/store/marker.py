"""A small file beside the journal that records whether a journal was begun here, and whether it was closed.

A daemon that was killed leaves a -wal with its last rows. SQLite opens the journal without it all the same, as if it
had never been there; the marker tells a -wal that is missing from one that was not needed any more. It also tells a
journal that lost its content from a new one.
"""

import contextlib
import os
from pathlib import Path
from typing import Literal

State = Literal["", "open", "closed"]


class Marker:
    """`journal.state`: `open` while a daemon writes, `closed` after it has ended as it should."""

    def __init__(self, journal: Path) -> None:
        self._path = journal.with_suffix(".state")

    @property
    def state(self) -> State:
        """Empty where there is none, as with a journal of an earlier version."""
        try:
            text = self._path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            return ""
        return "open" if text == "open" else "closed" if text == "closed" else ""

    def set(self, state: State) -> None:
        """Without it a journal is merely checked less, so that a full disk is no reason to fail."""
        with contextlib.suppress(OSError):
            aside = self._path.with_suffix(".state-new")
            descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(f"{state}\n")
                file.flush()
                os.fsync(file.fileno())
            aside.replace(self._path)
