"""Signals that end the process: the Bye names them, and the process dies of them as it would without us.

Design
------
SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 (Slurm's notice of a preemption) end a process at once where nothing handles them.
Where that is so when the first monitor starts, a handler is placed that sends the Bye, restores the default action and
sends the signal again: the parent sees a process that was killed by that signal. A handler of the script, of Python or
of a C library is not touched, nor is a signal that is ignored; a script that sets its own handler later replaces ours.
`signal.getsignal` and the result of `signal.signal` still show the default action, because frameworks behave
differently where a handler exists.

Python runs handlers on the main thread, which may be blocked in a collective for minutes. So a thread waits for the
bytes that Python's own C handler writes to the wakeup descriptor at once (`signal.set_wakeup_fd`). It does the same as
the handler, whichever comes first. Neither waits for the daemon longer than `GOODBYE_SECONDS`. C code that keeps the
interpreter's lock holds up both, as it does every Python handler; a launcher's SIGKILL still ends it.

A forked child must not inherit the handlers: Python forgets signals that come before the child's first line. So the
default actions are in force while a process forks, unless other code has placed a handler below Python since
(`faulthandler`). The child inherits the descriptor; the kernel adds the writer's process id to each byte, and bytes of
other processes are ignored.

The descriptor belongs to whoever asks for it (`asyncio` does, for its own handlers): while it is another's, the default
actions are in force, because a handler that only the main thread can run would keep a blocked process alive. They are
ours again when it is given back, or when a script restores the default action after a handler of its own.

A script may handle a signal and restore the default action at once. Its signal must not be taken for one that ours
handles: the bytes that wait are read before a handler is placed, and no byte is judged while that happens.

A signal that the script handles is noted with its time, SIGINT too: a Bye soon after it names it. The signals that also
mean other things (save now, stop this cell) are not named where an error ended the run later. Outside the main thread,
while another program part owns the wakeup descriptor, and outside Linux, nothing is placed, and such a death sends no
Bye.
"""

import contextlib
import os
import select
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

from caboose.observe.patches import Patches
from caboose.report import threads

CANCELLING = (signal.SIGTERM, signal.SIGHUP)
ENDING = (*CANCELLING, signal.SIGUSR1, signal.SIGUSR2)
NOTED = (*ENDING, signal.SIGINT)
GOODBYE_SECONDS = 0.7
"""At most; a daemon that answers has the Bye within milliseconds."""
NOTED_SECONDS = 900.0
"""A script may save a checkpoint after the signal, and then ends: by then it ended because of it."""
AT_ONCE_SECONDS = 30.0
"""An error that comes so soon after a signal comes from it: other ranks ended first."""
CREDENTIALS = struct.Struct("3i")
POINTER = struct.calcsize("P")
DEFAULT = bytes(512)
"""A `struct sigaction` of the default action; its size is at most that."""


class SignalWatch:
    """The one of this process; started once."""

    def __init__(self, say_goodbye: Callable[[str], None]) -> None:
        self._say_goodbye = say_goodbye
        self._pid = os.getpid()
        self._patches = Patches()
        self._getsignal, self._set_signal = signal.getsignal, signal.signal
        self._kernel: _Kernel | None = None
        self._placed: dict[int, bytes] = {}
        """Our handlers as the kernel has them."""
        self._forking: dict[int, bytes] = {}
        """The same, while the process forks."""
        self._sockets: tuple[socket.socket, socket.socket] | None = None
        self._owns_wakeup = True
        self._ending = threading.Lock()
        self._judging = threading.RLock()
        """Held while a byte is read and judged, and while handlers are placed."""
        self._noted: tuple[int, float] | None = None

    def start(self) -> None:
        """Places the handlers where the default action is in force; on the main thread, and on Linux, only."""
        self._pid, self._noted = os.getpid(), None
        self._ending, self._judging, self._owns_wakeup = threading.Lock(), threading.RLock(), True
        self._kernel = _kernel()
        if self._kernel is None or threading.current_thread() is not threading.main_thread():
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
        threads.start(threading.Thread(target=self._watch, args=(reader,), name="caboose-signals", daemon=True))
        self._place(ENDING)
        self._patches.put(signal, "getsignal", lambda original: lambda *a, **k: self._shown(original(*a, **k)))
        self._patches.put(signal, "signal", self._watch_handlers)
        self._patches.put(signal, "set_wakeup_fd", self._watch_wakeup)

    def stop(self) -> None:
        """Restores the default actions, and gives the descriptor back; at exit, and in a forked child."""
        if self._sockets is None:
            return
        self._patches.undo()
        self._restore()
        current = signal.set_wakeup_fd(-1)
        if current not in (-1, self._sockets[1].fileno()):
            signal.set_wakeup_fd(current)
        self._sockets = None

    def _place(self, numbers: Iterable[int]) -> None:
        assert self._kernel is not None, "nothing is placed without it"
        with self._judging:
            self._note_all()
            for number in numbers:
                if self._getsignal(number) is signal.SIG_DFL and self._kernel.is_default(number):
                    self._set_signal(number, self._handle)
                    self._placed[number] = self._kernel.action(number)

    def _restore(self) -> None:
        for number in ENDING:
            if self._is_ours(number):
                self._set_signal(number, signal.SIG_DFL)

    def _watch_handlers(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def set_signal(*args: Any, **kwargs: Any) -> Any:
            shown = self._shown(original(*args, **kwargs))
            if self._sockets is not None and self._owns_wakeup:
                self._place(ENDING)
            return shown

        return set_signal

    def _watch_wakeup(self, original: Callable[..., int]) -> Callable[..., int]:
        def set_wakeup_fd(fd: int, *, warn_on_full_buffer: bool = True) -> int:
            before = original(fd, warn_on_full_buffer=warn_on_full_buffer)
            if self._sockets is None:
                return before
            ours = self._sockets[1].fileno()
            self._owns_wakeup = fd == -1
            if self._owns_wakeup:
                original(ours, warn_on_full_buffer=False)
                self._place(ENDING)
            else:
                self._restore()
            return -1 if before == ours else before

        return set_wakeup_fd

    def before_fork(self) -> None:
        """Restores the default actions; on any thread."""
        kernel = self._kernel
        if self._sockets is not None and kernel is not None:
            in_force = [number for number in ENDING if self._is_ours(number) and self._is_in_force(number)]
            self._forking = {number: kernel.action(number) for number in in_force}
            for number in in_force:
                kernel.set(number, DEFAULT)

    def after_fork(self) -> None:
        """In the parent: places the handlers again."""
        for number, action in self._forking.items():
            if self._kernel is not None and self._is_ours(number):
                self._kernel.set(number, action)
        self._forking = {}

    def noted(self, error: BaseException | None) -> str:
        """The signal that came a short time ago, and ended the run, which ends with this error; empty if none did."""
        if self._sockets is not None:
            with self._judging:
                self._note_all()
        if self._noted is None:
            return ""
        number, came = self._noted
        is_other = number not in CANCELLING and isinstance(error, Exception)
        if time.monotonic() - came > (AT_ONCE_SECONDS if is_other else NOTED_SECONDS):
            return ""
        return signal.Signals(number).name

    def _shown(self, handler: Any) -> Any:
        return signal.SIG_DFL if handler == self._handle else handler

    def _is_ours(self, number: int) -> bool:
        return bool(self._getsignal(number) == self._handle)

    def _is_in_force(self, number: int) -> bool:
        """Whether the kernel calls our handler, and not one that was placed below Python later."""
        assert self._kernel is not None, "nothing is placed without it"
        return self._kernel.action(number)[:POINTER] == self._placed[number][:POINTER]

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self._is_ours(number):  # else another handler calls the one that it replaced
            self._end(number)

    def _watch(self, reader: socket.socket) -> None:
        waiting = select.poll()
        waiting.register(reader, select.POLLIN)
        with contextlib.suppress(OSError):  # the main thread's handler is left then
            while waiting.poll():
                number = self._judge(reader)
                if number:
                    self._end(number)

    def _judge(self, reader: socket.socket) -> int:
        """Reads one byte, if one waits; returns the signal if it is for our handler, else 0."""
        with self._judging, contextlib.suppress(BlockingIOError):
            number = self._note(reader)
            return number if number and self._is_ours(number) else 0
        return 0

    def _note_all(self) -> None:
        """Reads the bytes that wait: their signals came before what the main thread does now."""
        assert self._sockets is not None, "called only while there are some"
        with contextlib.suppress(BlockingIOError):
            while True:
                self._note(self._sockets[0])

    def _note(self, reader: socket.socket) -> int:
        """Reads one byte; returns the signal if it may end a process, and this one got it, else 0."""
        data, extra, *_ = reader.recvmsg(1, socket.CMSG_SPACE(CREDENTIALS.size), socket.MSG_DONTWAIT)
        number = data[0] if data else 0
        if number not in NOTED or not _is_from(self._pid, extra):
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
        assert self._kernel is not None, "nothing is placed without it"
        self._kernel.set(number, DEFAULT)
        os.kill(os.getpid(), number)


def _is_from(pid: int, extra: list[tuple[int, int, bytes]]) -> bool:
    return any(kind == socket.SCM_CREDENTIALS and CREDENTIALS.unpack_from(value)[0] == pid for _, kind, value in extra)


class _Kernel:
    """What the kernel does at a signal; unlike Python's `signal.signal`, for any thread to call.

    An action is the bytes of a `struct sigaction`; on Linux it begins with the handler's address.
    """

    def __init__(self, sigaction: Callable[[int, Any, Any], int], buffer: Callable[..., Any]) -> None:
        self._sigaction = sigaction
        self._buffer = buffer

    def action(self, number: int) -> bytes:
        found = self._buffer(len(DEFAULT))
        self._sigaction(number, None, found)
        return bytes(found.raw)

    def set(self, number: int, action: bytes) -> None:
        self._sigaction(number, self._buffer(action, len(action)), None)

    def is_default(self, number: int) -> bool:
        """Whether no code of this process handles it, C libraries included, and it is not ignored."""
        return not any(self.action(number)[:POINTER])


def _kernel() -> _Kernel | None:
    """None where there is no way to set actions."""
    if not hasattr(socket, "SO_PASSCRED"):
        return None
    try:
        import ctypes

        sigaction = ctypes.CDLL(None).sigaction
    except (ImportError, OSError, AttributeError):
        return None
    sigaction.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    sigaction.restype = ctypes.c_int
    return _Kernel(sigaction, ctypes.create_string_buffer)
