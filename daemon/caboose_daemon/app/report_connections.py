"""The connections of the report port: how many there may be, and how much of what they send may wait.

Design
------
libzmq accepts every connection and buffers without limit (`caboose_wire.sockets` has the reason). MAXMSGSIZE limits a
frame, not the frames of a message; an unfinished message cannot be seen through its API, and an empty frame of 2 bytes
takes 64 bytes there. So this counts for each connection: what the kernel has received (`caboose_wire.received_bytes`)
less what was read from it, which every message is received through here for. The difference is *held*: whole messages
that wait, or the part of a message that is unfinished. As long as the process's memory has not grown by `GROWTH_BYTES`
since little was held, that is all.

Then every connection is looked at, `CHECK_SECONDS` apart, until little is held again:

- The socket was emptied since the last look, so no whole message waits. What a connection holds is unfinished, and
  *stuck* if it delivered nothing for `STUCK_SECONDS`. Closed as `endless`: a connection that holds more than twice the
  largest message; and if the memory has grown by `UNFINISHED_BYTES`, the largest of the stuck ones until the rest takes
  half of that, whatever the frames and the speed.
- The socket was not emptied: whole messages wait. Closed as `flood`: a connection whose messages take `FLOOD_BYTES`;
  and if the memory has grown by `WAITING_BYTES`, the largest of them until the rest takes half of that.

Connections take descriptors too, and libzmq would accept until there is none for HTTP and the journal. So at
`max_connections()` the kernel drops requests for a connection (a filter on the listening socket; the peers try again),
and connections are closed which have not introduced a rank within `GREETING_SECONDS`: an agent does so at once. What is
above the limit nevertheless is closed, the oldest first of those that are no rank's, then the newest ranks' (`limit`).
At any time, one that sends no message for `SILENT_SECONDS` is closed (`silent`).

A peer that is closed by mistake connects again within a second and loses what was under way. What needs the kernel's
count works on Linux only.
"""

import contextlib
import ctypes
import logging
import os
import resource
import socket
import struct
import time
from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple

import zmq
from zmq.utils.monitor import parse_monitor_message

from caboose_wire.codec import MAX_FRAMES, MAX_REPORT_BYTES
from caboose_wire.received_bytes import ReceivedBytes

logger = logging.getLogger("caboose.daemon")

MIB = 1024 * 1024
CHECK_SECONDS = 0.25
SETTLE_SECONDS = 1.0
"""After closing: libzmq needs a moment to free what a connection held."""
MAX_LOOK_SHARE = 0.05
"""Of the loop's time, however many connections there are."""
GROWTH_BYTES = 64 * MIB
LITTLE_BYTES = 256 * 1024
"""Held by all connections together."""
STUCK_SECONDS = 0.5
MAX_UNFINISHED_BYTES = 2 * MAX_REPORT_BYTES
UNFINISHED_BYTES = 256 * MIB
FLOOD_BYTES = 64 * MIB
"""A rank keeps 1,000 reports at most, of some 10 KB each."""
WAITING_BYTES = 1024 * MIB
GREETING_SECONDS = 2.0
SILENT_SECONDS = 30.0
ENOUGH = 262_144
"""Descriptors; some systems allow a billion, and libraries have tables of that size."""
SPARE_DESCRIPTORS = 64
"""For the journal, its backups, the keys and the log."""
MAX_DISCARDED = 200
"""Frames that one call reads from a message that has too many."""
MESSAGE_BYTES = 128
"""What libzmq needs for a message, beside what is in it."""
MAX_AMPLIFICATION = 33.0
"""64 bytes for a frame of 2 bytes, and these."""
HANDSHAKE_BYTES = 1024
PING_BYTES = 64
"""Older agents send ZeroMQ heartbeats. So much of them is not counted as held for each message ..."""
PING_RATE = 16
"""... and no more than this in a second."""
CURVE_BYTES = 33
"""What encryption adds to a frame."""
LOG_SECONDS = 60.0
SO_ATTACH_FILTER, SO_DETACH_FILTER, BPF_RETURN = 26, 27, 6
"""Of Linux; Python has no names for them."""
PAGE = os.sysconf("SC_PAGE_SIZE")
EVENTS = zmq.EVENT_LISTENING | zmq.EVENT_ACCEPTED | zmq.EVENT_CLOSED | zmq.EVENT_DISCONNECTED

Reason = Literal["endless", "flood", "silent", "limit"]
DESCRIPTIONS: dict[Reason, str] = {
    "endless": "it sent {mb:.1f} MB without the end of a message",
    "flood": "it sent {mb:.1f} MB faster than that can be read",
    "silent": f"it sent no message for {SILENT_SECONDS:.0f} s",
    "limit": "there are more connections than descriptors for them (raise `ulimit -n`)",
}


class Received(NamedTuple):
    """A message, and the frame that knows the connection it came from."""

    peer: bytes
    frames: list[bytes]
    first: zmq.Frame


class ReportConnection:
    """One connection, from the moment it is accepted."""

    __slots__ = ("accepted", "active", "delivered", "held", "num_messages", "num_seen", "peer", "received")

    def __init__(self, descriptor: int, now: float) -> None:
        self.received = ReceivedBytes(descriptor)
        self.accepted = now
        self.peer = b""
        """How the socket calls it, once it sent a message."""
        self.num_messages = 0
        self.delivered = 0
        """Bytes on the wire of the messages that were read from it."""
        self.num_seen = 0
        self.active = now
        """When a look last found new messages of it."""
        self.held = 0

    def look(self, now: float) -> None:
        """Counts what it holds."""
        if self.num_messages != self.num_seen:
            self.num_seen, self.active = self.num_messages, now
        received = self.received.read() or 0
        heartbeats = min(PING_BYTES * self.num_messages, int(PING_RATE * (now - self.accepted)))
        self.held = max(0, received - self.delivered - HANDSHAKE_BYTES - heartbeats)

    @property
    def waiting_bytes(self) -> float:
        """The memory that what it holds may take, by the messages that were read from it."""
        if not self.num_messages:
            return self.held * MAX_AMPLIFICATION
        return self.held * (1.0 + MESSAGE_BYTES * self.num_messages / max(1, self.delivered))


class ReportConnections:
    """The connections of one ROUTER socket; used on the loop's thread only."""

    def __init__(
        self,
        router: "zmq.Socket[bytes]",
        on_closed: Callable[[Reason], None],
        memory: Callable[[], int] | None = None,
        *,
        is_encrypted: bool = False,
    ) -> None:
        """Before the socket is bound. `on_closed` is called for each connection closed; `memory` gives the bytes."""
        self._router = router
        self._on_closed = on_closed
        self._resident = ResidentBytes()
        self._memory = memory or self._resident.read
        self._frame_bytes = CURVE_BYTES if is_encrypted else 0
        self.monitor = router.get_monitor_socket(EVENTS)
        """Readable when there is something for `note_events`."""
        self.monitor.rcvhwm = 0
        self._open: dict[int, ReportConnection] = {}
        """By descriptor, the oldest first."""
        self._listening: set[int] = set()
        """Descriptors of the listening sockets."""
        self._gone: list[bytes] = []
        """Peers whose connections closed; some of their messages may not be read yet."""
        self._is_refusing = False
        self._silent: dict[int, ReportConnection] = {}
        """Those that sent no message yet, the oldest first."""
        self._next_check = 0.0
        self._reference: int | None = None
        """The memory when little was held."""
        self._is_emptied = False
        """Whether the socket was empty since the last look."""
        self._has_closed = False
        self._is_discarding = False
        self._next_log: dict[Reason, float] = {}

    def __len__(self) -> int:
        return len(self._open)

    # Messages

    def receive(self) -> Received | None:
        """The next message; None if a part of one with too many frames was discarded; zmq.Again if there is none."""
        if self._is_discarding:
            self._discard()
            return None
        router = self._router
        peer = router.recv(zmq.NOBLOCK)
        first = frame = router.recv(zmq.NOBLOCK, copy=False)
        body = frame.bytes
        frames = [body]
        extra = self._frame_bytes
        size = len(body) + extra
        size += 2 if size < 256 else 9
        while frame.more:
            if len(frames) > MAX_FRAMES:
                self._is_discarding = True
                break
            frame = router.recv(zmq.NOBLOCK, copy=False)
            body = frame.bytes
            frames.append(body)
            num = len(body) + extra
            size += num + 2 if num < 256 else num + 9
        self._count(first, peer, size)
        return Received(peer, frames, first)

    def _count(self, frame: zmq.Frame, peer: bytes, size: int) -> None:
        try:
            descriptor = int(frame.get(zmq.SRCFD))
        except (zmq.ZMQError, ValueError):
            return
        known = self._open.get(descriptor)
        if known is None:  # accepted since the last turn
            self.note_events(time.monotonic())
            known = self._open.get(descriptor)
            if known is None:
                return  # it is gone already
        if known.peer != peer:
            if known.peer:
                return  # of a connection that had this descriptor before
            known.peer = peer
            self._silent.pop(descriptor, None)
        known.delivered += size
        known.num_messages += 1

    def _discard(self) -> None:
        for _ in range(MAX_DISCARDED):
            if not self._router.recv(zmq.NOBLOCK, copy=False).more:
                self._is_discarding = False
                return

    def emptied(self) -> list[bytes]:
        """The socket has no whole message left: returns the peers whose connections closed since the last time."""
        self._is_emptied = True
        gone, self._gone = self._gone, []
        return gone

    # Connections

    def note_events(self, now: float) -> None:
        """Follows which connections there are."""
        with contextlib.suppress(zmq.Again):
            while True:
                event = parse_monitor_message(self.monitor.recv_multipart(zmq.NOBLOCK))
                descriptor = int(event["value"])
                gone = self._open.pop(descriptor, None)
                if gone is not None and gone.peer:
                    self._gone.append(gone.peer)
                self._silent.pop(descriptor, None)
                self._listening.discard(descriptor)
                if event["event"] == zmq.EVENT_ACCEPTED:
                    self._open[descriptor] = self._silent[descriptor] = ReportConnection(descriptor, now)
                elif event["event"] == zmq.EVENT_LISTENING:
                    self._listening.add(descriptor)
        self._regulate()

    def _regulate(self) -> None:
        """Accepts no more connections while there are as many as there may be."""
        is_full = len(self._open) >= max_connections()
        if is_full != self._is_refusing:
            self._is_refusing = is_full
            for descriptor in self._listening:
                refuse_connections(descriptor, is_full)

    def check(self, now: float, is_known: Callable[[bytes], bool]) -> None:
        """Closes what exceeds a limit; `is_known` returns whether a peer is a rank."""
        if now < self._next_check:
            return
        self._next_check = now + CHECK_SECONDS
        self._close_surplus(now, is_known)
        self._close_silent(now)
        memory = self._memory()
        if self._reference is None or memory < self._reference:
            self._reference = memory
        elif memory > self._reference + GROWTH_BYTES:
            began = time.perf_counter()
            self._look(now)
            pause = (time.perf_counter() - began) / MAX_LOOK_SHARE
            self._next_check = max(self._next_check, now + pause)

    def _close_surplus(self, now: float, is_known: Callable[[bytes], bool]) -> None:
        limit = max_connections()
        if len(self._open) < limit:
            return
        ranks = [known for known in self._open.values() if is_known(known.peer)]
        others = [known for known in self._open.values() if not is_known(known.peer)]
        late = sum(now - known.accepted > GREETING_SECONDS for known in others)
        self._close([*others, *reversed(ranks)][: max(late, len(self._open) - limit)], "limit", now)
        self._regulate()

    def _close_silent(self, now: float) -> None:
        expired = []
        for known in self._silent.values():
            if now - known.accepted < SILENT_SECONDS:
                break
            expired.append(known)
        if expired and self._is_emptied:
            self._close(expired, "silent", now)

    def _look(self, now: float) -> None:
        if self._has_closed:
            self._has_closed = False
            give_back()
        known_now = list(self._open.values())
        for known in known_now:
            known.look(now)
        growth = self._memory() - (self._reference or 0)
        if self._is_emptied:
            self._look_at_unfinished(known_now, growth, now)
        else:
            self._look_at_waiting(known_now, growth, now)
        self._is_emptied = False

    def _look_at_unfinished(self, known_now: list[ReportConnection], growth: int, now: float) -> None:
        inactive = sorted((known for known in known_now if known.active < now), key=lambda known: -known.held)
        if sum(known.held for known in inactive) < LITTLE_BYTES:
            self._reference = self._memory()
            return
        endless = [known for known in inactive if known.held > MAX_UNFINISHED_BYTES]
        stuck = [known for known in inactive if known.held and now - known.active >= STUCK_SECONDS]
        if growth > UNFINISHED_BYTES:
            share = 1.0 - UNFINISHED_BYTES / (2.0 * growth)
            endless = max(endless, largest(stuck, lambda known: known.held, share), key=len)
        self._close(endless, "endless", now)

    def _look_at_waiting(self, known_now: list[ReportConnection], growth: int, now: float) -> None:
        if growth <= 2 * GROWTH_BYTES:
            return
        waiting = sorted(known_now, key=lambda known: -known.waiting_bytes)
        flooding = [known for known in waiting if known.waiting_bytes > FLOOD_BYTES]
        if growth > WAITING_BYTES:
            share = 1.0 - WAITING_BYTES / (2.0 * growth)
            flooding = max(flooding, largest(waiting, lambda known: known.waiting_bytes, share), key=len)
        self._close(flooding, "flood", now)

    def _close(self, found: list[ReportConnection], reason: Reason, now: float) -> None:
        for known in found:
            peer = shut(known)
            if peer is None:
                continue
            self._has_closed = True
            self._on_closed(reason)
            if now >= self._next_log.get(reason, 0.0):
                self._next_log[reason] = now + LOG_SECONDS
                why = DESCRIPTIONS[reason].format(mb=known.held / 1e6)
                logger.warning("closed the connection of %s: %s (logged once a minute)", peer, why)
            self._open.pop(known.received.descriptor, None)
            self._silent.pop(known.received.descriptor, None)
        if found and reason in ("endless", "flood"):
            self._next_check = now + SETTLE_SECONDS

    def close(self, descriptors: Iterable[int]) -> int:
        """Closes those descriptors that are connections of this socket; returns how many."""
        return sum(shut(self._open[num]) is not None for num in descriptors if num in self._open)

    def stop(self) -> None:
        """Before the socket is closed."""
        self._router.disable_monitor()
        self.monitor.close(linger=0)
        self._resident.close()


def largest(
    found: list[ReportConnection], size: Callable[[ReportConnection], float], share: float
) -> list[ReportConnection]:
    """The first of a sorted list that have this share of all."""
    total, so_far = sum(size(known) for known in found), 0.0
    for num, known in enumerate(found, 1):
        so_far += size(known)
        if so_far >= share * total:
            return found[:num]
    return found


def max_connections() -> int:
    """How many descriptors there are for reports; a quarter is HTTP's (`out.web.connections`)."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        descriptors = 1_000_000
    return max(8, descriptors - descriptors // 4 - SPARE_DESCRIPTORS)


def raise_descriptor_limit() -> None:
    """Allows this process as many descriptors as the system lets it have, up to `ENOUGH`: each rank needs one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def refuse_connections(listening: int, is_on: bool) -> None:
    """Makes the kernel drop requests for a connection to a listening socket, or take them again; on Linux."""
    drop_all = ctypes.create_string_buffer(struct.pack("HBBI", BPF_RETURN, 0, 0, 0))
    program = struct.pack("HP", 1, ctypes.addressof(drop_all))
    borrowed = socket.socket(fileno=listening)
    try:
        borrowed.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER if is_on else SO_DETACH_FILTER, program)
    except OSError as error:
        logger.debug("the filter of new connections was not changed: %s", error)
    finally:
        borrowed.detach()


def shut(known: ReportConnection) -> str | None:
    """Ends a connection of libzmq's, which closes the descriptor; its peer, or None if it is gone already."""
    if not known.received.is_open:
        return None
    borrowed = socket.socket(fileno=known.received.descriptor)  # not a copy: there may be no descriptor left
    try:
        name = borrowed.getpeername()
        borrowed.shutdown(socket.SHUT_RDWR)
    except OSError:
        return None
    finally:
        borrowed.detach()
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "this machine"  # of a socket file


class ResidentBytes:
    """The memory of this process. The file stays open: there may be no descriptor left when it matters."""

    def __init__(self) -> None:
        self._file: int | None = None
        with contextlib.suppress(OSError):
            self._file = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> int:
        """Bytes; 0 where it cannot be read."""
        if self._file is None:
            return 0
        try:
            return int(os.pread(self._file, 128, 0).split()[1]) * PAGE
        except (OSError, IndexError, ValueError):
            return 0

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def give_back() -> None:
    """Gives freed memory back to the system; with glibc only."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
