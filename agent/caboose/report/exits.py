"""Monitors are closed when the process ends, and let go of in a forked child."""

import atexit
import logging
import os
import weakref
from typing import Protocol

logger = logging.getLogger("caboose")


class Closable(Protocol):
    """What is closed at exit: a monitor."""

    def close(self) -> None:
        """Says good-bye."""

    def abandon(self) -> None:
        """In a forked child: the socket and the job's story belong to the parent."""


_live: "weakref.WeakSet[Closable]" = weakref.WeakSet()


def close_at_exit(monitor: Closable) -> None:
    """Sees to it that the monitor says good-bye, however the script ends."""
    if not _live:
        atexit.register(_close_all)
    _live.add(monitor)


def _close_all() -> None:
    for monitor in list(_live):
        try:
            monitor.close()
        except Exception as error:  # noqa: BLE001 - the interpreter is ending; the job's exit code is its own
            logger.debug("caboose: closing failed: %r", error)


def _abandon_in_child() -> None:
    for monitor in list(_live):
        monitor.abandon()


os.register_at_fork(after_in_child=_abandon_in_child)
