"""Bounds what a client can hold of the HTTP server: sockets, and time.

Design
------
uvicorn has no limit on connections that are merely open, and none on how slowly a request arrives or an answer is read.
`HttpListener` counts accepted sockets, in all and by address, and closes those beyond the limit at once; it counts from
`accept`, so that a TLS handshake counts too. Without a free descriptor a connection can be neither accepted nor closed,
and asyncio would try thousands of times a second and log each try. So the listener keeps one descriptor in reserve,
gives it up to accept the connection, closes that, and takes the descriptor again.

`BoundedProtocol` adds three timers to uvicorn's protocol, none of which a trickle of bytes prolongs: for the head of a
request, from the connection or the end of the answer before; for its body; and for a reader that takes nothing of what
waits for it. An answer itself, such as the live stream, may last for ever.

What is closed is counted by reason, and logged once a minute at most. All of it runs on the HTTP thread.
"""

import asyncio
import contextlib
import errno
import ipaddress
import logging
import os
import resource
import socket
import time
from collections import Counter
from typing import Any, ClassVar, Literal

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

logger = logging.getLogger("caboose.daemon")

HEAD_SECONDS = 10.0
"""For a complete request head; also the longest that an idle connection is kept."""
BODY_SECONDS = 10.0
READ_SECONDS = 10.0
READ_BYTES = 16 * 1024
"""A reader that takes less than this in `READ_SECONDS`, while more waits for it, is dropped."""
MAX_CONNECTIONS = 512
LOG_SECONDS = 60.0
NO_SNIFFING = ("x-content-type-options", "nosniff")

Reason = Literal["too_many", "too_many_of_peer", "no_descriptors", "slow_head", "slow_body", "slow_reader"]
NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
RETRY_SECONDS = 0.05
"""A pause of the HTTP thread where not even the reserve is left: without it, it would spin."""


def max_connections() -> int:
    """A quarter of the descriptors that the process may have, and no more than `MAX_CONNECTIONS`."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(8, min(MAX_CONNECTIONS, descriptors // 4))


class Dropped:
    """Counts the connections that were closed, and logs them now and then."""

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts
        self._next_log = 0.0

    def add(self, reason: Reason, peer: str) -> None:
        self._counts[reason] += 1
        now = time.monotonic()
        if now >= self._next_log:
            self._next_log = now + LOG_SECONDS
            logger.warning("HTTP connection from %s closed: %s; so far %s", peer, reason, dict(self._counts))


class HttpListener(socket.socket):
    """A listening socket that accepts a bounded number of connections."""

    _reserve: int | None = None

    def limit(self, most: int, dropped: Dropped) -> None:
        """`most` in all; half of them from one address."""
        self._most = most
        self._most_of_peer = max(4, most // 2)
        self._dropped = dropped
        self._open: Counter[str] = Counter()
        self._reserve = os.open(os.devnull, os.O_RDONLY)

    def accept(self) -> tuple["Accepted", Any]:
        """The next connection. ConnectionAbortedError, which asyncio ignores, for one beyond the limit."""
        try:
            connection, address = super().accept()
        except OSError as error:
            if error.errno not in NO_DESCRIPTORS:
                raise
            self._turn_away()
            raise ConnectionAbortedError("no_descriptors") from None
        peer = _group(address)
        reason = self._excess(peer)
        if reason is not None:
            self._dropped.add(reason, peer)
            connection.close()
            raise ConnectionAbortedError(reason)
        self._open[peer] += 1
        accepted = Accepted(connection.family, connection.type, connection.proto, fileno=connection.detach())
        accepted.listener, accepted.peer = self, peer
        return accepted, address

    def _excess(self, peer: str) -> Reason | None:
        if self._open.total() >= self._most:
            return "too_many"
        return "too_many_of_peer" if self._open[peer] >= self._most_of_peer else None

    def _turn_away(self) -> None:
        """Closes the next connection, with the descriptor that is kept for this."""
        if self._reserve is None:
            time.sleep(RETRY_SECONDS)
        else:
            os.close(self._reserve)
            self._reserve = None
        try:
            connection, address = super().accept()
            connection.close()
            self._dropped.add("no_descriptors", _group(address))
        except OSError:  # another thread took it, or nobody waits any more
            pass
        with contextlib.suppress(OSError):
            self._reserve = os.open(os.devnull, os.O_RDONLY)

    def close(self) -> None:
        super().close()
        reserve, self._reserve = self._reserve, None
        if reserve is not None:
            os.close(reserve)

    def closed(self, peer: str) -> None:
        """One of its connections was closed."""
        self._open[peer] -= 1
        if self._open[peer] <= 0:
            del self._open[peer]


class Accepted(socket.socket):
    """A connection that reports its end to its listener."""

    listener: HttpListener | None = None
    peer = ""

    def close(self) -> None:
        super().close()
        listener, self.listener = self.listener, None
        if listener is not None:
            listener.closed(self.peer)


def _group(address: Any) -> str:
    """The address that is counted: of IPv6, the network of 64 bits that one machine may have."""
    host = str(address[0]).partition("%")[0]
    try:
        parsed = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(parsed, ipaddress.IPv6Address):
        return str(parsed.ipv4_mapped or ipaddress.ip_network((parsed, 64), strict=False))
    return host


class BoundedProtocol(H11Protocol):
    """uvicorn's protocol with time limits; `dropped` is set by `bounded`."""

    dropped: ClassVar[Dropped]
    _waits_for: Literal["", "head", "body"] = ""
    _timer: asyncio.TimerHandle | None = None
    _reader_timer: asyncio.TimerHandle | None = None
    _unread = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._waits_for = ""  # the time for the next head begins now
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._timer, self._reader_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Starts the timer of what the connection waits for, if that has changed."""
        state = self.conn.their_state
        waits_for: Literal["", "head", "body"] = (
            "head" if state is h11.IDLE else "body" if state is h11.SEND_BODY else ""
        )
        if waits_for == self._waits_for:
            return
        self._waits_for = waits_for
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if waits_for and not self.transport.is_closing():
            seconds = HEAD_SECONDS if waits_for == "head" else BODY_SECONDS
            self._timer = self.loop.call_later(seconds, self._too_slow)

    def _too_slow(self) -> None:
        has_begun = self._waits_for == "body" or bool(self.conn.trailing_data[0]) or self.cycle is None
        if has_begun:  # else it is a connection that was kept for a next request, as it may be
            self._drop("slow_body" if self._waits_for == "body" else "slow_head")
        else:
            self.transport.close()

    def _drop(self, reason: Reason) -> None:
        if not self.transport.is_closing():
            self.dropped.add(reason, self.client[0] if self.client else "unknown")
            self.transport.abort()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.transport.get_write_buffer_size()
        self._reader_timer = self.loop.call_later(READ_SECONDS, self._check_reader)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._reader_timer is not None:
            self._reader_timer.cancel()
            self._reader_timer = None

    def _check_reader(self) -> None:
        unread = self.transport.get_write_buffer_size()
        if unread > self._unread - READ_BYTES:
            self._drop("slow_reader")
            return
        self._unread = unread
        self._reader_timer = self.loop.call_later(READ_SECONDS, self._check_reader)

    def send_400_response(self, msg: str) -> None:
        """As uvicorn's, with the header that every answer has."""
        name, value = (text.encode() for text in NO_SNIFFING)
        headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close"), (name, value)]
        for event in (
            h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
            h11.Data(data=msg.encode("ascii")),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


def bounded(dropped: Dropped) -> type[BoundedProtocol]:
    """The protocol, counting in `dropped`."""
    return type("BoundedProtocol", (BoundedProtocol,), {"dropped": dropped})
