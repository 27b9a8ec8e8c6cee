"""The monitors of this process and their models: closed when the process ends, abandoned in a forked child.

A signal that ends the process sends their Byes first (`signals`).
"""

import atexit
import logging
import os
import sys
import weakref
from typing import Any, Protocol

from caboose.report.signals import SignalWatch

logger = logging.getLogger("caboose")


class LiveMonitor(Protocol):
    """What is needed of a monitor here."""

    @property
    def is_active(self) -> bool:
        """Whether it reports steps."""

    def close(self) -> None:
        """Removes its hooks and sends the Bye."""

    def say_goodbye(self, signal_name: str) -> None:
        """Sends the Bye of a process that a signal ends; on any thread, and within `GOODBYE_SECONDS`."""

    def abandon(self) -> None:
        """In a forked child: the socket and the reports belong to the parent."""


_live: "weakref.WeakKeyDictionary[LiveMonitor, weakref.ref[Any]]" = weakref.WeakKeyDictionary()
"""Each monitor, with the model that it watches."""


def _say_goodbye(signal_name: str) -> None:
    for monitor in list(_live):
        monitor.say_goodbye(signal_name)


_signals = SignalWatch(_say_goodbye)
_is_registered = False
_exit_error: BaseException | None = None


def register(monitor: LiveMonitor, model: Any) -> None:
    """Closes the monitor when the process ends, however it ends."""
    global _is_registered
    if not _is_registered:
        _is_registered = True
        atexit.register(close_all)
        try:
            _signals.start()
        except Exception as error:  # noqa: BLE001 - the run matters more than the name of its end
            logger.debug("caboose: signals are not watched: %r", error)
    _live[monitor] = weakref.ref(model)


def note_exit(error: BaseException) -> None:
    """The script ends with this exception; `sys.exit(1)` is one that Python does not keep."""
    global _exit_error
    if not isinstance(error, SystemExit) or error.code not in (None, 0):
        _exit_error = error


def exit_error() -> BaseException | None:
    """The exception that ends the process; None if it ends well, or if that is not known."""
    return _exit_error or getattr(sys, "last_value", None)


def noted_signal() -> str:
    """The signal that the process got a short time ago; empty if none."""
    return _signals.noted


def is_watched(model: Any) -> bool:
    """Whether an active monitor watches this very model."""
    return any(watched() is model and monitor.is_active for monitor, watched in list(_live.items()))


def close_all() -> None:
    """What this process trains is over: closes every monitor."""
    for monitor in list(_live):
        try:
            monitor.close()
        except Exception as error:  # noqa: BLE001 - the interpreter is ending, and the exit code is the script's
            logger.debug("caboose: closing failed: %r", error)
    _signals.stop()


def _abandon_in_child() -> None:
    _signals.stop()
    for monitor in list(_live):
        monitor.abandon()


os.register_at_fork(before=_signals.before_fork, after_in_parent=_signals.after_fork, after_in_child=_abandon_in_child)
