"""The monitors of this process: closed when the process ends, abandoned in a forked child.

A signal that ends the process sends their Byes first (`signals`), and so does `os._exit` (`exits`).

A monitor that is closed while an exception is being handled, as in a `finally`, does not know whether that ends the
run. Its Bye waits until the process ends, or until the next monitor is made.
"""

import atexit
import contextlib
import logging
import os
import sys
import weakref
from collections.abc import Iterator
from typing import Protocol

from caboose.report.exits import Exit, ExitWatch, exit_with, failure
from caboose.report.signals import GOODBYE_SECONDS, SignalWatch

logger = logging.getLogger("caboose")


class Farewell(Protocol):
    """Sends the Bye of a monitor that is closed."""

    def __call__(self, reason: Exit, timeout: float = ..., /) -> None:
        """Waits so long at most."""


class LiveMonitor(Protocol):
    """What is needed of a monitor here."""

    @property
    def is_active(self) -> bool:
        """Whether it reports steps."""

    @property
    def current_step(self) -> int:
        """The last step that has ended."""

    def paused(self) -> "contextlib.AbstractContextManager[None]":
        """Nothing that is run within the block is observed."""

    def close(self) -> object:
        """Removes its hooks and sends the Bye."""

    def say_goodbye(self, signal_name: str) -> None:
        """Sends the Bye of a process that a signal ends; on any thread, and within `GOODBYE_SECONDS`."""

    def leave(self, reason: Exit) -> None:
        """Sends the Bye of a process that ends at once, and prints the last line; as `say_goodbye`."""

    def abandon(self) -> None:
        """In a forked child: the socket and the reports belong to the parent."""


_live: "weakref.WeakSet[LiveMonitor]" = weakref.WeakSet()


_unsettled: list[tuple[Exit, Farewell]] = []
"""The Byes that wait, each with how the run ended if it did. The exception itself would keep the model alive."""


def _say_goodbye(signal_name: str) -> None:
    for handled, say in list(_unsettled):
        say(handled, GOODBYE_SECONDS)
    for monitor in list(_live):
        monitor.say_goodbye(signal_name)


def _leave() -> None:
    """Before `os._exit`."""
    reason = exit_with(_exits.error, noted_signal())
    for _, say in list(_unsettled):
        say(reason, GOODBYE_SECONDS)
    for monitor in list(_live):
        monitor.leave(reason)


def _count_steps() -> int:
    return sum(monitor.current_step for monitor in list(_live))


_signals = SignalWatch(_say_goodbye)
_exits = ExitWatch(_count_steps, _leave)
_is_registered = False


def register(monitor: LiveMonitor) -> None:
    """Closes the monitor when the process ends, however it ends."""
    global _is_registered
    if not _is_registered:
        _is_registered = True
        atexit.register(close_all)
        _exits.start()
        try:
            _signals.start()
        except Exception as error:  # noqa: BLE001 - the run matters more than the name of its end
            logger.debug("caboose: signals are not watched: %r", error)
    _live.add(monitor)


def note_exit(error: BaseException | None) -> None:
    """The script ends with this exception, or well."""
    _exits.decide(error)


def exit_error() -> BaseException | None:
    """The exception that ends the process; None if it ends well, or if that is not known."""
    return _exits.error


def close_session(say: Farewell, error: BaseException | None) -> None:
    """Sends the Bye of a monitor that is closed, now or once it is known how the run ended."""
    error = failure(error) or exit_error()
    handled = sys.exc_info()[1]
    if error is None and handled is not None and not _exits.is_decided:
        _unsettled.append((exit_with(handled, ""), say))
    else:
        say(exit_with(error, noted_signal()))


def settle() -> None:
    """The process goes on: it has handled the exceptions of monitors that were closed."""
    while _unsettled:
        _unsettled.pop(0)[1](exit_with(None, noted_signal()))


def noted_signal() -> str:
    """The signal that the process got a short time ago; empty if none."""
    return _signals.noted(_exits.error)


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """What is run within the block is not of the training: no monitor of this process observes it."""
    with contextlib.ExitStack() as stack:
        for monitor in list(_live):
            stack.enter_context(monitor.paused())
        yield


def close_all() -> None:
    """What this process trains is over: closes every monitor. It may train something else later."""
    global _is_registered
    while _unsettled:
        say = _unsettled.pop(0)[1]
        say(exit_with(exit_error(), noted_signal()))
    for monitor in list(_live):
        try:
            monitor.close()
        except Exception as error:  # noqa: BLE001 - the interpreter is ending, and the exit code is the script's
            logger.debug("caboose: closing failed: %r", error)
    _signals.stop()
    _exits.stop()
    _is_registered = False
    atexit.unregister(close_all)


def _abandon_in_child() -> None:
    global _is_registered
    _is_registered = False
    _signals.stop()
    _unsettled.clear()
    for monitor in list(_live):
        monitor.abandon()


os.register_at_fork(before=_signals.before_fork, after_in_parent=_signals.after_fork, after_in_child=_abandon_in_child)
