"""Signals that end the process: the Bye names them, and the process dies of them as it would without us.

Design
------
SIGTERM and SIGHUP end a process at once where nothing handles them. Where that is so when the first monitor starts, a
handler is placed that sends the Bye, restores the default action and sends the signal again: the parent sees a process
that was killed by that signal. A handler of the script, of Python or of a C library is not touched, nor is a signal
that is ignored; a script that sets its own handler later replaces ours. `signal.getsignal` and the result of
`signal.signal` still show the default action, because frameworks behave differently where a handler exists.

Python runs handlers on the main thread, which may be blocked in a collective for minutes. So a thread waits for the
bytes that Python's own C handler writes to the wakeup descriptor at once (`signal.set_wakeup_fd`). It does the same as
the handler, whichever comes first. Neither waits for the daemon longer than `GOODBYE_SECONDS`. C code that keeps the
interpreter's lock holds up both, as it does every Python handler; a launcher's SIGKILL still ends it.

A forked child must not inherit the handlers: Python forgets signals that come before the child's first line. So the
default actions are in force while a process forks. The child inherits the descriptor; the kernel adds the writer's
process id to each byte, and bytes of other processes are ignored.

A signal that the script handles is noted with its time: a Bye soon after it names it. Outside the main thread, where
another program part owns the wakeup descriptor, and outside Linux, nothing is placed, and such a death sends no Bye.
"""

import contextlib
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from caboose.observe.patches import Patches

ENDING = (signal.SIGTERM, signal.SIGHUP)
GOODBYE_SECONDS = 0.7
"""At most; a daemon that answers has the Bye within milliseconds."""
NOTED_SECONDS = 900.0
"""A script may save a checkpoint after the signal, and then ends: by then it ended because of it."""
CREDENTIALS = struct.Struct("3i")


class SignalWatch:
    """The one of this process; started once."""

    def __init__(self, say_goodbye: Callable[[str], None]) -> None:
        self._say_goodbye = say_goodbye
        self._pid = os.getpid()
        self._patches = Patches()
        self._getsignal = signal.getsignal
        self._set_action: Callable[[int, int | None], int | None] | None = None
        self._forking: dict[int, int | None] = {}
        """The handlers as the kernel has them, while the process forks."""
        self._sockets: tuple[socket.socket, socket.socket] | None = None
        self._ending = threading.Lock()
        self._noted: tuple[int, float] | None = None

    def start(self) -> None:
        """Places the handlers where the default action is in force; on the main thread, and on Linux, only."""
        self._set_action = _kernels_action()
        if self._set_action is None or threading.current_thread() is not threading.main_thread():
            return
        reader, writer = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        writer.setblocking(False)
        others = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        if others != -1:
            signal.set_wakeup_fd(others)
            reader.close()
            writer.close()
            return
        self._sockets = reader, writer
        threading.Thread(target=self._watch, args=(reader,), name="caboose-signals", daemon=True).start()
        caught = _caught()
        for number in ENDING:
            if self._getsignal(number) is signal.SIG_DFL and number not in caught:
                signal.signal(number, self._handle)
        for name in ("getsignal", "signal"):
            self._patches.put(signal, name, lambda original: lambda *args: self._shown(original(*args)))

    def stop(self) -> None:
        """Restores the default actions, and gives the descriptor back; at exit, and in a forked child."""
        if self._sockets is None:
            return
        self._patches.undo()
        for number in ENDING:
            if self._is_ours(number):
                signal.signal(number, signal.SIG_DFL)
        current = signal.set_wakeup_fd(-1)
        if current not in (-1, self._sockets[1].fileno()):
            signal.set_wakeup_fd(current)
        self._sockets = None

    def before_fork(self) -> None:
        """Restores the default actions; on any thread."""
        if self._sockets is not None and self._set_action is not None:
            self._forking = {number: self._set_action(number, None) for number in ENDING if self._is_ours(number)}

    def after_fork(self) -> None:
        """In the parent: places the handlers again."""
        for number, handler in self._forking.items():
            if self._set_action is not None and self._is_ours(number):
                self._set_action(number, handler)
        self._forking = {}

    @property
    def noted(self) -> str:
        """The signal that came a short time ago; empty if none did."""
        if self._sockets is not None:
            with contextlib.suppress(BlockingIOError):
                while True:
                    self._note(self._sockets[0], socket.MSG_DONTWAIT)
            time.sleep(0.01)  # if the thread has read it, it needs the interpreter for a moment to note it
        if self._noted is None or time.monotonic() - self._noted[1] > NOTED_SECONDS:
            return ""
        return signal.Signals(self._noted[0]).name

    def _shown(self, handler: Any) -> Any:
        return signal.SIG_DFL if handler == self._handle else handler

    def _is_ours(self, number: int) -> bool:
        return bool(self._getsignal(number) == self._handle)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self._is_ours(number):  # else another handler calls the one that it replaced
            self._end(number)

    def _watch(self, reader: socket.socket) -> None:
        with contextlib.suppress(OSError):  # the main thread's handler is left then
            while True:
                number = self._note(reader)
                if number and self._is_ours(number):
                    self._end(number)

    def _note(self, reader: socket.socket, flags: int = 0) -> int:
        """Reads one byte; returns the signal if it ends a process, and this one got it, else 0."""
        data, extra, *_ = reader.recvmsg(1, socket.CMSG_SPACE(CREDENTIALS.size), flags)
        number = data[0] if data else 0
        if number not in ENDING or not _is_from(self._pid, extra):
            return 0
        self._noted = number, time.monotonic()
        return number

    def _end(self, number: int) -> None:
        """Sends the Bye, once, and ends the process by the signal."""
        if os.getpid() == self._pid and self._ending.acquire(blocking=False):
            try:
                self._say_goodbye(signal.Signals(number).name)
            finally:
                self._die(number)
        else:
            time.sleep(GOODBYE_SECONDS + 0.1)
            self._die(number)

    def _die(self, number: int) -> None:
        assert self._set_action is not None, "nothing is placed without it"
        self._set_action(number, None)
        os.kill(os.getpid(), number)


def _is_from(pid: int, extra: list[tuple[int, int, bytes]]) -> bool:
    return any(kind == socket.SCM_CREDENTIALS and CREDENTIALS.unpack_from(value)[0] == pid for _, kind, value in extra)


def _kernels_action() -> Callable[[int, int | None], int | None] | None:
    """Sets a signal's action and returns the one before, None for the default; unlike `signal.signal`, on any thread.

    None where there is no way to do that.
    """
    if not hasattr(socket, "SO_PASSCRED"):
        return None
    try:
        import ctypes

        libc_signal = ctypes.CDLL(None).signal
    except (ImportError, OSError, AttributeError):
        return None
    libc_signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
    libc_signal.restype = ctypes.c_void_p
    return lambda number, action: libc_signal(number, action)


def _caught() -> set[int]:
    """The signals that any code of this process handles, C libraries included; all of them where that is not known."""
    try:
        with open("/proc/self/status") as status:
            mask = next(int(line.split()[1], 16) for line in status if line.startswith("SigCgt:"))
    except (OSError, StopIteration, ValueError):
        return set(ENDING)
    return {number for number in ENDING if mask >> (number - 1) & 1}
