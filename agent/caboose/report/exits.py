"""With what error the process ends, also where Python keeps no trace of it: `sys.exit` with a failure, and `os._exit`.

Design
------
`sys.last_value` has the exception that ends a script when functions run at exit, but not that of `sys.exit`. So its
status is noted, with the exception that is being handled: Hydra and `torch.multiprocessing` print the traceback and
then exit. The note does not count once another step was taken: somebody has caught it. `python -m caboose` sees how its
script ends, and is believed. At a prompt an exception ends nothing.

`os._exit` runs nothing at exit, so what is due then is done before it.
"""

import os
import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from caboose.observe.patches import Patches

MAX_CHARACTERS = 4096


class Exit(NamedTuple):
    """How a process exits, as its Bye states it; the daemon's verdict on the run is another thing."""

    error: str = ""
    signal: str = ""


class EarlyExit(Exception):
    """`os._exit` with a failure."""


class ExitWatch:
    """The one of this process; started once."""

    def __init__(self, count_steps: Callable[[], int], before_exit: Callable[[], None]) -> None:
        """`before_exit` is called before an `os._exit`, on its thread."""
        self._count_steps = count_steps
        self._before_exit = before_exit
        self._patches = Patches()
        self._pid = os.getpid()
        self.is_decided = False
        """Whether it is known how the script ended."""
        self._error: BaseException | None = None
        self._asked: tuple[BaseException | None, int] = (None, 0)
        """The failure that `sys.exit` was called with, and the steps that had been taken."""

    def start(self) -> None:
        """Watches `sys.exit` and `os._exit`; in a forked child, for the child."""
        self._pid, self._asked = os.getpid(), (None, 0)
        self.is_decided, self._error = False, None
        if self._patches.has(sys, "exit"):
            return
        self._patches.put(sys, "exit", self._watch_exit)
        self._patches.put(os, "_exit", self._watch_early_exit)

    def stop(self) -> None:
        self._patches.undo()

    def decide(self, error: BaseException | None) -> None:
        """The script ends with this exception, or well."""
        self.is_decided, self._error = True, failure(error)

    @property
    def error(self) -> BaseException | None:
        """The failure that ends the process; None if it ends well, or if that is not known."""
        asked, num_steps = self._asked
        if self.is_decided:
            return self._error
        if asked is not None and num_steps == self._count_steps():
            return asked
        if hasattr(sys, "ps1"):
            return None
        return failure(getattr(sys, "last_value", None))

    def _watch_exit(self, original: Callable[..., NoReturn]) -> Callable[..., NoReturn]:
        def exit(*status: Any) -> NoReturn:
            if threading.current_thread() is threading.main_thread():
                asked = SystemExit(*status)
                asked.__context__ = sys.exc_info()[1] or self.error  # multiprocessing exits again with its status
                self._asked = failure(asked), self._count_steps()
            original(*status)

        return exit

    def _watch_early_exit(self, original: Callable[..., NoReturn]) -> Callable[..., NoReturn]:
        def _exit(status: int) -> NoReturn:
            try:
                if os.getpid() == self._pid:
                    self.decide(self.error or _early(status))
                    self._before_exit()
            finally:
                original(status)

        return _exit


def exit_with(error: BaseException | None, signal_name: str) -> Exit:
    """The exit with this error, this signal, or neither; it holds nothing of the exception."""
    if isinstance(error, KeyboardInterrupt):
        signal_name = signal_name or "SIGINT"
    return Exit("" if error is None else _text(error), signal_name)


def _text(error: BaseException) -> str:
    kind = type(error).__name__
    try:
        return f"{kind}: {error}"[:MAX_CHARACTERS]
    except Exception:  # noqa: BLE001 - a user's exception may be unable to describe itself
        return kind


def _early(status: int) -> BaseException | None:
    asked = EarlyExit(f"os._exit({status})")
    handled = sys.exc_info()[1]
    return None if status == 0 else (handled if isinstance(handled, Exception) else asked)


def failure(error: BaseException | None) -> BaseException | None:
    """The error that this exception stands for; None if it ends a program well.

    A `SystemExit` with a failing status stands for what was being handled when it was raised.
    """
    if isinstance(error, GeneratorExit):
        return None
    if not isinstance(error, SystemExit):
        return error
    if error.code in (None, 0):
        return None
    context: BaseException | None = error.__context__
    while isinstance(context, SystemExit):
        context = context.__context__
    return context if isinstance(context, Exception | KeyboardInterrupt) else error
