"""The monitors of this process and their models: closed when the process ends, abandoned in a forked child."""

import atexit
import logging
import os
import weakref
from typing import Any, Protocol

logger = logging.getLogger("caboose")


class LiveMonitor(Protocol):
    """What is needed of a monitor here."""

    @property
    def is_active(self) -> bool:
        """Whether it reports steps."""

    def close(self) -> None:
        """Removes its hooks and sends the Bye."""

    def abandon(self) -> None:
        """In a forked child: the socket and the reports belong to the parent."""


_live: "weakref.WeakKeyDictionary[LiveMonitor, weakref.ref[Any]]" = weakref.WeakKeyDictionary()
"""Each monitor, with the model that it watches."""


def register(monitor: LiveMonitor, model: Any) -> None:
    """Closes the monitor when the process ends, however it ends."""
    if not _live:
        atexit.register(_close_all)
    _live[monitor] = weakref.ref(model)


def is_watched(model: Any) -> bool:
    """Whether an active monitor watches this very model."""
    return any(watched() is model and monitor.is_active for monitor, watched in list(_live.items()))


def _close_all() -> None:
    for monitor in list(_live):
        try:
            monitor.close()
        except Exception as error:  # noqa: BLE001 - the interpreter is ending, and the exit code is the script's
            logger.debug("caboose: closing failed: %r", error)


def _abandon_in_child() -> None:
    for monitor in list(_live):
        monitor.abandon()


os.register_at_fork(after_in_child=_abandon_in_child)
