"""A relay's connection to the daemon, or to the next relay.

Design
------
The socket holds few bundles, and none while nothing is connected (`IMMEDIATE`): what waits, waits in the relay's
buffer, where it is bounded and counted. Bundles that were sent when the connection broke may be lost; the daemon counts
them as gaps in the ranks' reports.

libzmq does not connect again after its peer broke the protocol; its monitor is silent then, where it would name every
new try. Such a socket is replaced (`is_lost`).
"""

import contextlib
from collections.abc import Iterator, Sequence

import zmq
from zmq.utils.monitor import parse_monitor_message

from caboose_daemon.relay.settings import UpstreamKeys
from caboose_wire.codec import MAX_FRAME_BYTES
from caboose_wire.sockets import outlast

EVENTS = zmq.EVENT_CONNECTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED
MAX_UNSENT = 16
"""Bundles in libzmq."""
LINGER_MS = 500
LOST_SECONDS = 15.0
"""More than `RECONNECT_IVL_MAX`."""
MAX_PER_TURN = 1000


class Upstream:
    """A DEALER socket to one endpoint; used by one thread."""

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", endpoint: str, keys: UpstreamKeys | None, now: float
    ) -> None:
        self.socket = context.socket(zmq.DEALER)
        self._configure(endpoint, keys)
        self.monitor = self.socket.get_monitor_socket(EVENTS)
        """Readable when there is something for `note_events`."""
        self.socket.connect(endpoint)
        self.is_connected = False
        self.num_connects = 0
        """Times that it has connected: each time it may be another daemon."""
        self._heard = now

    def _configure(self, endpoint: str, keys: UpstreamKeys | None) -> None:
        socket = self.socket
        outlast(socket)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, MAX_UNSENT)
        socket.setsockopt(zmq.IMMEDIATE, 1)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        socket.setsockopt(zmq.RECONNECT_IVL, 100)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 5_000)
        if endpoint.startswith("tcp://["):
            socket.setsockopt(zmq.IPV6, 1)
        if keys is not None:
            socket.curve_serverkey = keys.server_public.encode()
            socket.curve_secretkey = keys.secret.encode()
            socket.curve_publickey = zmq.curve_public(keys.secret.encode())

    def note_events(self, now: float) -> None:
        """Follows whether it is connected."""
        with contextlib.suppress(zmq.Again):
            while True:
                event = parse_monitor_message(self.monitor.recv_multipart(zmq.NOBLOCK))
                self._heard = now
                if event["event"] != zmq.EVENT_CONNECT_RETRIED:
                    self.is_connected = event["event"] == zmq.EVENT_CONNECTED
                    self.num_connects += self.is_connected

    def is_lost(self, now: float) -> bool:
        """Whether the socket will never connect again."""
        return not self.is_connected and now - self._heard > LOST_SECONDS

    def send(self, frames: Sequence[bytes]) -> bool:
        """Whether it could be sent now."""
        try:
            self.socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def receive(self) -> Iterator[list[bytes]]:
        """What has come, within a limit."""
        with contextlib.suppress(zmq.Again):
            for _ in range(MAX_PER_TURN):
                yield self.socket.recv_multipart(zmq.NOBLOCK)

    def close(self, linger_ms: int = 0) -> None:
        self.socket.disable_monitor()
        self.monitor.close(linger=0)
        self.socket.close(linger=linger_ms)
