"""Drives a relay: one thread that owns both ends.

Design
------
One turn: the messages that arrived (bounded), what came from upstream, then bundles, if any are due. Reports of the
ranks of a node come close together, since every step waits for all ranks; so a report waits until each rank behind the
relay has reported too, for `hold_seconds` at most. Everything else (Hello, Bye, events, acknowledgements) leaves at
once, and takes with it what waits.

While upstream is away, messages wait in the buffer; beyond its bound the oldest are dropped and counted. Nothing is
acknowledged between the two: what was under way when a connection broke, or when a relay was killed, shows as gaps in
the ranks' own numbers (`StepReport.seq`), which the daemon counts.

A relay keeps nothing across a restart: the ranks connect again, and the daemon asks each for its Hello.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from socket import socketpair

import zmq

from caboose_daemon.app.report_connections import Reason, Received
from caboose_daemon.app.report_port import ReportPort
from caboose_daemon.relay import settings as relay_settings
from caboose_daemon.relay.buffer import Buffer
from caboose_daemon.relay.counts import Counts
from caboose_daemon.relay.downstream import HEARTBEAT, Downstream
from caboose_daemon.relay.settings import RelayError, RelaySettings
from caboose_daemon.relay.unread_arrays import UnreadArrays
from caboose_daemon.relay.upstream import LINGER_MS, Upstream
from caboose_wire import Refused, WireError, decode, encode
from caboose_wire.bundles import DOWN_START, GONE, MAX_RELAYS, UP_START, Parcel, RelayHealth, pack, unpack
from caboose_wire.codec import REPORT_STARTS

logger = logging.getLogger("caboose.relay")

POLL_MS = 100
BLOCKED_MS = 20
"""While upstream is connected and takes nothing more."""
MAX_PER_TURN = 2000
HEALTH_SECONDS = 2.0
REFUSED_SECONDS = 60.0
LOG_SECONDS, CLOSE_SECONDS = 60.0, 1.0
MAX_DETAIL = 500


class Relay:
    """A relay; `run` is its thread, and `stop` may be called on any."""

    def __init__(self, settings: RelaySettings, clock: Callable[[], float] = time.time) -> None:
        self._settings = settings
        self._context = zmq.Context()
        self._port = ReportPort(self._context, settings.keys, self._closed)
        self._downstream = Downstream()
        self._unread_arrays = UnreadArrays()
        self._buffer = Buffer(settings.buffer_bytes)
        self._upstream = Upstream(self._context, settings.upstream, settings.upstream_keys, time.monotonic())
        self._sent_tables: set[bytes] = set()
        """Digests of the tables that what is upstream now has."""
        self._num_connects = 0
        self._quiet_until = 0.0
        self._reported: set[int] = set()
        """Ranks whose reports wait."""
        self._is_urgent = self._is_blocked = False
        self._next_health = 0.0
        self._counts = Counts(settings.name, clock())
        self._next_log = 0.0
        self._num_logged = 0
        self._stopping = False
        self._bell, self._rope = socketpair()
        self._bell.setblocking(False)
        self._rope.setblocking(False)
        self._poller = zmq.Poller()
        port, upstream = self._port, self._upstream
        for one in (port.socket, port.connections.monitor, self._bell.fileno(), upstream.socket, upstream.monitor):
            self._poller.register(one, zmq.POLLIN)

    def bind(self) -> list[str]:
        """Binds and returns the real addresses; RelayError if one cannot be had."""
        found = []
        for endpoint in self._settings.listen:
            relay_settings.make_way(endpoint)
            try:
                found.append(self._port.bind(endpoint))
            except zmq.ZMQError as error:
                raise RelayError(f"--listen {endpoint}: {error.strerror}") from None
            relay_settings.set_access(endpoint, is_open=self._settings.keys is not None)
        return found

    def stop(self) -> None:
        """Ends `run` after its turn; on any thread, and in a signal handler."""
        self._stopping = True
        with contextlib.suppress(OSError):
            self._rope.send(b"\0")

    def run(self) -> None:
        """Relays until `stop`, then sends what waits, for a second at most."""
        try:
            while not self._stopping:
                self._poller.poll(self._patience_ms())
                self._turn()
            deadline = time.monotonic() + CLOSE_SECONDS
            self._turn()
            while not self._flush(time.monotonic()) and time.monotonic() < deadline:
                self._poller.poll(10)
                self._upstream.note_events(time.monotonic())
        finally:
            self.close()

    def close(self) -> None:
        self._port.close()
        self._upstream.close(LINGER_MS)
        self._context.term()
        self._bell.close()
        self._rope.close()

    def _patience_ms(self) -> int:
        """How long to wait for something to happen."""
        if not self._buffer or not self._can_send(time.monotonic()):
            return POLL_MS
        if self._is_blocked:
            return BLOCKED_MS
        left = self._settings.hold_seconds - self._buffer.waited(time.monotonic())
        return max(1, min(POLL_MS, int(1000 * left) + 1))

    def _turn(self) -> None:
        now = time.monotonic()
        with contextlib.suppress(BlockingIOError):
            self._bell.recv(64)
        self._port.connections.note_events(now)
        self._follow_upstream(now)
        self._read(now)
        for frames in self._upstream.receive():
            self._hear(frames, now)
        for peer, frames in self._downstream.requests():
            self._send_down(peer, frames)
        self._port.connections.check(now, self._downstream.numbers.knows)
        if self._port.keys is not None:
            for peer in self._port.keys.check(now, self._port.connections):
                self._lose(peer, now)
        if self._is_due(now):
            self._is_blocked = not self._flush(now)
        self._log_drops(now)

    # Upstream

    def _follow_upstream(self, now: float) -> None:
        self._upstream.note_events(now)
        if self._upstream.is_lost(now):
            self._poller.unregister(self._upstream.socket)
            self._poller.unregister(self._upstream.monitor)
            self._upstream.close()
            self._upstream = Upstream(self._context, self._settings.upstream, self._settings.upstream_keys, now)
            self._num_connects = 0
            self._poller.register(self._upstream.socket, zmq.POLLIN)
            self._poller.register(self._upstream.monitor, zmq.POLLIN)
        if self._upstream.num_connects != self._num_connects:
            self._num_connects = self._upstream.num_connects
            self._sent_tables.clear()  # it may be another daemon
            self._quiet_until = self._next_health = 0.0
            logger.info("connected to %s", self._settings.upstream)

    def _hear(self, frames: list[bytes], now: float) -> None:
        try:
            if frames[0] == DOWN_START:
                self._pass_down(frames)
                return
            message = decode(frames)
        except WireError as error:
            logger.warning("%s sent an unreadable message: %s", self._settings.upstream, error)
            return
        if isinstance(message, Refused):
            self._log(f"{self._settings.upstream} refuses a bundle ({message.reason}): {message.detail}", now)
            if message.reason in ("type", "version"):  # an earlier version, which takes no bundles
                self._quiet_until = now + REFUSED_SECONDS

    def _pass_down(self, frames: list[bytes]) -> None:
        bundle = unpack(frames)
        if bundle.is_forgetful:
            self._sent_tables.clear()
        for peer, down in self._downstream.addressed(bundle.parcels):
            self._send_down(peer, down)

    def _send_down(self, peer: bytes, frames: Sequence[bytes]) -> None:
        """One that is gone or does not read asks again."""
        with contextlib.suppress(zmq.ZMQError):
            self._port.socket.send_multipart([peer, *frames], zmq.NOBLOCK)

    def _can_send(self, now: float) -> bool:
        return self._upstream.is_connected and now >= self._quiet_until

    def _is_due(self, now: float) -> bool:
        if not self._can_send(now):
            return False
        if self._is_urgent or now >= self._next_health:
            return True
        is_whole = len(self._reported) >= len(self._downstream.numbers)
        return bool(self._buffer) and (is_whole or self._buffer.waited(now) >= self._settings.hold_seconds)

    def _flush(self, now: float) -> bool:
        """Sends all that waits; False while upstream does not accept it."""
        while self._can_send(now) and (self._buffer or now >= self._next_health):
            parcels = self._buffer.next()
            health = self._health(now) if now >= self._next_health else []
            reduced = self._unread_arrays.reduce(parcels)
            if not self._send_tables(parcels) or not self._send(pack(UP_START, reduced, health=health)):
                return False
            self._buffer.sent(len(parcels))
            if health:
                self._next_health = now + HEALTH_SECONDS
        if self._buffer:
            return False
        self._reported.clear()
        self._is_urgent = False
        return True

    def _send_tables(self, parcels: Sequence[Parcel]) -> bool:
        """Sends the tables that these parcels need and upstream does not have; whether it has all of them then."""
        missing = {digest: None for parcel in parcels for digest in parcel.tables if digest not in self._sent_tables}
        for digest in missing:
            table = self._downstream.tables.encoded(digest)
            if table is not None:  # else the rank will be asked for its Hello
                if not self._send(pack(UP_START, [], tables={digest: table})):
                    return False
                self._sent_tables.add(digest)
        return True

    def _send(self, frames: list[bytes]) -> bool:
        if not self._upstream.send(frames):
            return False
        self._counts.num_bundles += 1
        self._counts.sent_bytes += sum(map(len, frames))
        return True

    def _health(self, now: float) -> list[RelayHealth]:
        own = self._counts.health(self._downstream, self._buffer, now)
        return [own, *self._downstream.health()][:MAX_RELAYS]

    # Ranks

    def _read(self, now: float) -> None:
        for _ in range(MAX_PER_TURN):
            try:
                received = self._port.connections.receive()
            except zmq.Again:
                for peer in self._port.connections.emptied():
                    self._lose(peer, now)
                return
            if received is not None:
                self._take(received, now)

    def _take(self, received: Received, now: float) -> None:
        key = self._port.key_of(received)
        if key is None:
            return  # it was revoked
        self._counts.num_messages += 1
        self._counts.received_bytes += sum(map(len, received.frames))
        try:
            for parcel in self._downstream.take(received.peer, received.frames, key):
                self._keep(parcel, now)
        except WireError as error:
            self._counts.num_refused += 1
            refused = Refused(reason=error.reason, detail=error.detail[:MAX_DETAIL])
            self._send_down(received.peer, encode(refused))

    def _keep(self, parcel: Parcel, now: float) -> None:
        self._buffer.add(parcel, now)
        kind = parcel.frames[0] if parcel.frames else b""
        if parcel.kind == GONE:
            self._reported.discard(parcel.rank)
            self._unread_arrays.forget(parcel.rank)
        if kind in REPORT_STARTS:
            self._reported.add(parcel.rank)
        elif kind != HEARTBEAT:
            self._is_urgent = True

    def _lose(self, peer: bytes, now: float) -> None:
        for parcel in self._downstream.closed(peer):
            self._keep(parcel, now)

    def _closed(self, reason: Reason) -> None:
        self._counts.num_refused += 1

    def _log_drops(self, now: float) -> None:
        if self._buffer.num_dropped > self._num_logged:
            text = f"{self._settings.upstream} is away or too slow: {self._buffer.num_dropped} messages dropped so far"
            if self._log(text, now):
                self._num_logged = self._buffer.num_dropped

    def _log(self, text: str, now: float) -> bool:
        """Logs a warning, once a minute; returns whether it did."""
        if now < self._next_log:
            return False
        self._next_log = now + LOG_SECONDS
        logger.warning("%s", text)
        return True
