"""Closes connections that send a message without end, or more than can be read: libzmq would buffer it all.

Design
------
MAXMSGSIZE limits a frame; there is no limit to the frames of a message, and none to the messages that wait
(`caboose_wire.sockets`). libzmq keeps the frames of an unfinished message and hands over nothing. The daemon cannot see
such a message, but it can see its own memory grow, and which connection receives bytes (`caboose_wire.received_bytes`).
So this runs on the loop's thread and costs one read of /proc every `CHECK_SECONDS` as long as the memory does not grow.
Growth of `GROWTH_BYTES` starts a search of `SEARCH_SECONDS`: messages are then received together with the descriptor
that they came from. A connection is closed if it delivered no message during the search, still receives, and has
received `MAX_UNFINISHED_BYTES` (twice the largest message) since its last delivery. Nobody is judged before the loop
has emptied the socket once: until then whole messages may wait. If the loop does not empty the socket from one look to
the next and the memory has grown by as much again, a connection is closed whose messages that wait take `FLOOD_BYTES`:
more than any rank has to send after the longest pause. That is what it received in the search less what was read from
it, and the memory that libzmq needs for each message. An honest peer that is closed by mistake connects again within a
second and loses nothing it queued.

Only Linux has what this needs; elsewhere it does nothing.
"""

import contextlib
import ctypes
import logging
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import zmq

from caboose_wire.codec import MAX_REPORT_BYTES
from caboose_wire.received_bytes import ReceivedBytes

logger = logging.getLogger("caboose.daemon")

CHECK_SECONDS = 0.25
GROWTH_BYTES = 64 * 1024 * 1024
SEARCH_SECONDS = 5.0
MAX_UNFINISHED_BYTES = 2 * MAX_REPORT_BYTES
STILL_RECEIVES_BYTES = 1024 * 1024
FLOOD_BYTES = 64 * 1024 * 1024
"""A rank keeps 1,000 reports at most, of some 10 KB each."""
TOTAL_BYTES = 1024 * 1024 * 1024
"""Of all connections together."""
MESSAGE_BYTES = 128
"""What libzmq needs for a message, beside what is in it."""
FRAME_BYTES = 2
"""What the wire needs for a frame, at least."""
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Connection:
    """An open TCP connection of this process, and the bytes that it has received."""

    descriptor: int
    peer: str
    received: int

    @property
    def key(self) -> tuple[int, str]:
        """Descriptors are used again; a connection is one descriptor and one peer."""
        return self.descriptor, self.peer


Reason = Literal["endless", "flood"]


class FloodWatch:
    """Watches the connections of one listening port."""

    def __init__(
        self, on_closed: Callable[[Connection, Reason], None], memory: Callable[[], int] | None = None
    ) -> None:
        """`on_closed` is called for each connection that was closed; `memory` gives the resident bytes."""
        self._on_closed = on_closed
        self._memory = memory or resident_bytes
        self._port = 0
        self._next_check = 0.0
        self._reference: int | None = None
        self._until = 0.0
        self._began: dict[tuple[int, str], int] = {}
        """Bytes that each connection had received when the search began."""
        self._last_delivery: dict[tuple[int, str], int] = {}
        """Bytes that each connection had received when it last delivered a message in a search."""
        self._deliverers: set[int] = set()
        """Descriptors that messages came from since the last look."""
        self._read: dict[int, list[int]] = {}
        """Messages and bytes that were read in this search, by descriptor."""
        self._honest: set[tuple[int, str]] = set()
        """Connections that delivered a message in this search."""
        self._has_emptied = False
        self._is_emptied = False
        """Whether the socket was empty since the last look."""
        self._began_with = 0
        """The memory when the search began."""
        self._has_closed = False

    @property
    def is_searching(self) -> bool:
        """Whether messages are to be received with `receive`."""
        return self._until > 0.0

    def listen_on(self, port: int) -> None:
        self._port = port

    def receive(self, router: "zmq.Socket[bytes]") -> list[bytes]:
        """The next message, and notes the connection that it came from; zmq.Again if there is none."""
        frames = router.recv_multipart(flags=zmq.NOBLOCK, copy=False)
        found = [frame.bytes for frame in frames]
        self.delivered(frames[-1], found[1:])
        return found

    def delivered(self, frame: zmq.Frame, message: Sequence[bytes]) -> None:
        """Notes the connection that a message came from, by one of its frames."""
        with contextlib.suppress(zmq.ZMQError, KeyError, ValueError):
            descriptor = int(frame.get(zmq.SRCFD))
            self._deliverers.add(descriptor)
            read = self._read.setdefault(descriptor, [0, 0])
            read[0] += 1
            read[1] += sum(len(part) + FRAME_BYTES for part in message)

    def emptied(self) -> None:
        """The socket has no whole message left."""
        self._has_emptied = self._is_emptied = True

    def check(self, now: float) -> None:
        """Looks at the memory, and in a search at every connection."""
        if now < self._next_check or not self._port:
            return
        self._next_check = now + CHECK_SECONDS
        if self.is_searching:
            self._search(now)
            return
        memory = self._memory()
        if self._reference is None or memory < self._reference:
            self._reference = memory
        elif memory > self._reference + GROWTH_BYTES:
            self._begin(now, memory)

    def _begin(self, now: float, memory: int) -> None:
        self._until = now + SEARCH_SECONDS
        self._began_with = memory
        self._has_emptied = self._is_emptied = self._has_closed = False
        self._deliverers.clear()
        self._read.clear()
        self._honest.clear()
        self._began = {known.key: known.received for known in connections(self._port)}
        self._last_delivery = {key: num for key, num in self._last_delivery.items() if key in self._began}

    def _search(self, now: float) -> None:
        known_now = connections(self._port)
        flooding = self._flooding(known_now) if not self._is_emptied else []
        if not self._is_emptied:
            self._until = max(self._until, now + 2 * CHECK_SECONDS)  # what waits is counted from the search's beginning
        self._is_emptied = False
        for known in known_now:
            if known in flooding:
                self._close(known, "flood")
                continue
            if known.descriptor in self._deliverers:
                self._last_delivery[known.key] = known.received
                self._honest.add(known.key)
            elif self._has_emptied and known.key not in self._honest and self._is_endless(known):
                self._close(known, "endless")
        self._deliverers.clear()
        if now >= self._until:
            self._end()

    def _flooding(self, known_now: list[Connection]) -> list[Connection]:
        """Connections whose messages that wait take too much: each alone, or the largest while all together do."""
        if self._memory() <= self._began_with + GROWTH_BYTES:
            return []
        waiting = sorted(((self._waiting_bytes(known), known) for known in known_now), key=lambda pair: -pair[0])
        total = sum(max(0.0, num) for num, _ in waiting)
        found = []
        for num, known in waiting:
            if num > FLOOD_BYTES or (total > TOTAL_BYTES and num > STILL_RECEIVES_BYTES):
                found.append(known)
                total -= num
        return found

    def _waiting_bytes(self, known: Connection) -> float:
        """The memory that messages of a connection take which came in this search and were not read yet."""
        num_messages, num_bytes = self._read.get(known.descriptor, (0, 0))
        waiting = known.received - self._began.get(known.key, 0) - num_bytes
        return waiting * (1.0 + MESSAGE_BYTES * num_messages / max(1, num_bytes))

    def _is_endless(self, known: Connection) -> bool:
        since_delivery = known.received - self._last_delivery.get(known.key, 0)
        since_began = known.received - self._began.get(known.key, 0)
        return since_delivery > MAX_UNFINISHED_BYTES and since_began > STILL_RECEIVES_BYTES

    def _close(self, known: Connection, reason: Reason) -> None:
        _shut(known)
        self._has_closed = True
        self._on_closed(known, reason)

    def _end(self) -> None:
        self._until = 0.0
        self._began = {}
        if self._has_closed:
            with contextlib.suppress(OSError, AttributeError):  # gives the freed buffers back to the system; glibc only
                ctypes.CDLL(None).malloc_trim(0)
        self._reference = self._memory()


def resident_bytes() -> int:
    """The memory of this process; 0 where it cannot be read."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * PAGE
    except OSError:
        return 0


def connections(port: int) -> list[Connection]:
    """The established TCP connections of this process to its own port."""
    found = []
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                    found += _connection(int(name), port)
    return found


def close_connections(port: int, descriptors: set[int]) -> int:
    """Closes those descriptors that are connections to this port; returns how many."""
    found = [known for known in connections(port) if known.descriptor in descriptors]
    for known in found:
        _shut(known)
    return len(found)


def _shut(known: Connection) -> None:
    with contextlib.suppress(OSError), _borrowed(known.descriptor) as connection:
        connection.shutdown(socket.SHUT_RDWR)


def _connection(descriptor: int, port: int) -> list[Connection]:
    with contextlib.suppress(OSError), _borrowed(descriptor) as connection:
        if connection.type != socket.SOCK_STREAM or connection.family not in (socket.AF_INET, socket.AF_INET6):
            return []
        if connection.getsockname()[1] != port:
            return []
        host, peer_port = connection.getpeername()[:2]
        received = ReceivedBytes(descriptor).read()
        if received is not None:
            return [Connection(descriptor, f"{host}:{peer_port}", received)]
    return []


def _borrowed(descriptor: int) -> socket.socket:
    """A socket object of its own for a descriptor of libzmq's; closing it leaves the original open."""
    return socket.socket(fileno=os.dup(descriptor))
