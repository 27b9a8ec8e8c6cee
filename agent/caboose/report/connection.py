"""One connection to the daemon: a DEALER socket that keeps neither too much to send nor too much that came in.

Design
------
Used by one thread, which owns it. To send: the socket holds few messages (`SNDHWM`), and none for a daemon that is not
connected (`IMMEDIATE`), so that drops are decided by the caller. Linger is zero, except at `close`.

What comes in: MAXMSGSIZE limits a frame, and a message may have any number of them. libzmq keeps the frames of an
unfinished message where they cannot be read, counted or dropped, and there is no high-water mark (`sockets`). A peer
that sends frames without end made a process grow by 300 MB/s. So the kernel's count of the bytes on the connection is
compared with what was read (`caboose_wire.received_bytes`): more than `MAX_BYTES` since the last message that was read
raises `Flooded`, and closing the socket frees the frames. The count is read when the connection has something to read,
at most every `CHECK_SECONDS`, so `wait` must be where its thread spends its time. Heartbeats of older daemons are
counted as well: without any message they reach the limit after hours, which is then no flood (`is_slow`). The bound:
`MAX_BYTES` on the wire and what arrives during one check, at most 32 times that in libzmq's memory (an empty frame of 2
bytes takes 64 there). Measured: 10 MB at most. The small receive buffer slows a flood down. Outside Linux the bytes are
not counted, and only a frame is limited.

A finished message is read frame by frame, and only `MAX_FRAMES` of it are kept. Finished messages wait in libzmq
without a limit as well: the caller reads all of them at each of its turns (`sender`).

libzmq connects again by itself after a connection was lost, but not after its peer broke the protocol: then the socket
is dead, without an error. Its monitor is silent then, where it would name every new try; so a socket that is not
connected and silent for `LOST_SECONDS` is lost (`is_lost`), and the caller opens another.
"""

import contextlib
import os
import select
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import zmq
from zmq.utils.monitor import parse_monitor_message

from caboose_wire import WireError
from caboose_wire.codec import MAX_HEADER_BYTES
from caboose_wire.received_bytes import ReceivedBytes
from caboose_wire.sockets import outlast

MAX_BYTES = 512 * 1024
MAX_FRAMES = 8
CHECK_SECONDS = 0.005
SLOW_SECONDS = 3600.0
RECEIVE_BUFFER_BYTES = 16 * 1024
LINGER_MS = 250
LOST_SECONDS = 15.0
"""More than `RECONNECT_IVL_MAX`."""
POLLIN, NOBLOCK, SNDMORE = int(zmq.POLLIN), int(zmq.NOBLOCK), int(zmq.SNDMORE)
"""As plain numbers: to combine the enumerations takes as long as to send a report."""


class CurveKeys:
    """Keys for an encrypted, authenticated connection, in ZeroMQ's text form (z85)."""

    def __init__(self, server_public: str, agent_secret: str) -> None:
        self.server_public = server_public.encode()
        self.secret = agent_secret.encode()
        self.public = zmq.curve_public(self.secret)


class Flooded(Exception):
    """The daemon sends more than is read: bytes of which no message is ever finished, or messages without end."""

    def __init__(self, what: str, *, is_slow: bool = False) -> None:
        super().__init__(f"the daemon sent more than {what}")
        self.is_slow = is_slow
        """Whether it took so long that it may be heartbeats."""


class Waker:
    """Ends another thread's `Connection.wait`; any thread may call `wake`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ends: tuple[int, int] | None = None

    def open(self) -> int:
        """The descriptor to poll."""
        with self._lock:
            self._ends = os.pipe()
            for end in self._ends:
                os.set_blocking(end, False)
            return self._ends[0]

    def drain(self) -> None:
        """Forgets what woke it; called by the thread that waits."""
        if self._ends is not None:
            with contextlib.suppress(BlockingIOError):
                os.read(self._ends[0], 4096)

    def wake(self) -> None:
        with self._lock:  # the descriptor must not become another file's between the two
            if self._ends is not None:
                with contextlib.suppress(BlockingIOError):  # full: it wakes anyway
                    os.write(self._ends[1], b"!")

    def nudge(self) -> None:
        """As `wake`, but never waits: for the training thread. Where that would take a wait, nothing is done."""
        if self._lock.acquire(blocking=False):
            try:
                if self._ends is not None:
                    with contextlib.suppress(BlockingIOError):  # full: it wakes anyway
                        os.write(self._ends[1], b"!")
            finally:
                self._lock.release()

    def close(self) -> None:
        with self._lock:
            for end in self._ends or ():
                os.close(end)
            self._ends = None


class Connection:
    """A DEALER socket to one endpoint."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        endpoint: str,
        curve: CurveKeys | None,
        waker: Waker | None = None,
    ) -> None:
        self._waker = waker
        self._count: ReceivedBytes | None = None
        self._is_connected = False
        self.num_connects = 0
        """Times that it has connected: each time another daemon may answer."""
        self._heard = time.monotonic()
        """When the last message of the daemon came."""
        self._mark, self._marked_at = 0, time.monotonic()
        with contextlib.ExitStack() as undo:
            self._socket = undo.enter_context(context.socket(zmq.DEALER))
            configure(self._socket, endpoint, curve)
            self._monitor = undo.enter_context(
                self._socket.get_monitor_socket(
                    zmq.EVENT_CONNECTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED
                )
            )
            self._poll = select.poll()
            self._poll.register(int(self._monitor.getsockopt(zmq.FD)), select.POLLIN)
            if waker is not None:
                self._poll.register(waker.open(), select.POLLIN)
                undo.callback(waker.close)
            self._socket.connect(endpoint)
            undo.pop_all()

    def wait(self, seconds: float) -> None:
        """Waits so long, or until woken; raises `Flooded` as soon as the daemon has sent too much."""
        deadline = time.monotonic() + seconds
        self._note_connections()  # to its end, for only then does its descriptor signal the next event
        while (left := deadline - time.monotonic()) > 0:
            ready = dict(self._poll.poll(1000 * left))
            if not ready:
                return
            count = self._count
            if count is not None and count.descriptor in ready:
                if not self._check(count):
                    self._forget(count.descriptor)
                time.sleep(min(CHECK_SECONDS, left))  # libzmq takes a moment to read what has come
                del ready[count.descriptor]
            if ready and not self._note_connections():
                if self._waker is not None:
                    self._waker.drain()
                return  # woken

    @property
    def is_connected(self) -> bool:
        """Whether something answers at the endpoint."""
        return self._is_connected

    @property
    def is_lost(self) -> bool:
        """Whether the socket will never connect again."""
        return not self._is_connected and time.monotonic() - self._heard > LOST_SECONDS

    def _check(self, count: ReceivedBytes) -> bool:
        """Whether the connection still exists."""
        num = count.read()
        if num is not None and num - self._mark > MAX_BYTES:
            is_slow = time.monotonic() - self._marked_at > SLOW_SECONDS
            raise Flooded(f"{MAX_BYTES >> 10} KiB without a message", is_slow=is_slow)
        return num is not None

    def _note_connections(self) -> bool:
        """Reads what the monitor has; returns whether it had anything."""
        seen: list[tuple[int, int]] = []
        with contextlib.suppress(zmq.Again):
            while int(self._monitor.getsockopt(zmq.EVENTS)) & POLLIN:  # asking costs a tenth of an exception
                event = parse_monitor_message(self._monitor.recv_multipart(NOBLOCK))
                seen.append((int(event["event"]), int(event["value"])))
        for kind, descriptor in seen:
            self._heard = time.monotonic()
            if kind == zmq.EVENT_CONNECT_RETRIED:
                continue
            self._is_connected = kind == zmq.EVENT_CONNECTED
            if self._count is not None:
                self._forget(self._count.descriptor)
            if kind == zmq.EVENT_CONNECTED:
                self.num_connects += 1
                self._count = ReceivedBytes(descriptor)
                self._mark, self._marked_at = 0, time.monotonic()
                if self._count.read() is not None:
                    self._poll.register(descriptor, select.POLLIN)
        return bool(seen)

    def _forget(self, descriptor: int) -> None:
        self._count = None
        with contextlib.suppress(KeyError):
            self._poll.unregister(descriptor)

    def send(self, frames: Sequence[bytes]) -> bool:
        """Sends a message, if the daemon accepts it now; never waits."""
        socket, more = self._socket, NOBLOCK | SNDMORE
        try:
            for frame in frames[:-1]:  # a message whose first frame is accepted is accepted as a whole
                socket.send(frame, more)
            socket.send(frames[-1], NOBLOCK)
        except zmq.Again:
            return False
        return True

    def receive(self) -> list[bytes] | None:
        """The frames of the next finished message; None if there is none. WireError if it has too many."""
        if not int(self._socket.getsockopt(zmq.EVENTS)) & POLLIN:
            return None
        frames: list[bytes] = []
        num = 0
        try:
            while num == 0 or self._socket.getsockopt(zmq.RCVMORE):
                frame = self._socket.recv(NOBLOCK)
                num += 1
                if num <= MAX_FRAMES:
                    frames.append(frame)
        except zmq.Again:
            return None
        if self._count is not None:
            self._mark, self._marked_at = self._count.read() or 0, time.monotonic()
        if num > MAX_FRAMES:
            raise WireError("oversize", f"{num} frames, the limit is {MAX_FRAMES}")
        return frames

    def close(self, linger_ms: int = 0) -> None:
        """Closes the socket; with a linger, what is sent already may still leave."""
        if self._waker is not None:
            self._waker.close()
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=linger_ms)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(LINGER_MS if error is None else 0)


def configure(socket: "zmq.Socket[bytes]", endpoint: str, curve: CurveKeys | None) -> None:
    """Sets the options of a socket that reports to the daemon."""
    outlast(socket)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, 100)
    socket.setsockopt(zmq.RCVBUF, RECEIVE_BUFFER_BYTES)
    socket.setsockopt(zmq.IMMEDIATE, 1)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_HEADER_BYTES)
    socket.setsockopt(zmq.RECONNECT_IVL, 100)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 5_000)
    if endpoint.startswith("tcp://["):
        socket.setsockopt(zmq.IPV6, 1)
    if curve is not None:
        socket.curve_serverkey = curve.server_public
        socket.curve_secretkey = curve.secret
        socket.curve_publickey = curve.public
