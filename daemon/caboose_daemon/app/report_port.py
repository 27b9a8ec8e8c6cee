"""The port that ranks report to: a ROUTER socket with its limits and, where keys are used, its keys.

Used by the thread that reads it: the daemon's loop, or a relay.
"""

from collections.abc import Callable

import zmq
import zmq.auth.thread

from caboose_daemon.app.key_watch import KeyWatch
from caboose_daemon.app.keys import DaemonKeys
from caboose_daemon.app.report_connections import Reason, Received, ReportConnections
from caboose_wire.codec import MAX_FRAME_BYTES
from caboose_wire.sockets import outlast


def configure(router: "zmq.Socket[bytes]") -> None:
    """Sets the options of the socket that ranks report to."""
    outlast(router)
    router.setsockopt(zmq.LINGER, 0)
    router.setsockopt(zmq.ROUTER_MANDATORY, 1)
    router.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
    router.setsockopt(zmq.SNDHWM, 1_000)
    router.setsockopt(zmq.BACKLOG, 4096)
    router.setsockopt(zmq.HANDSHAKE_IVL, 5_000)


class ReportPort:
    """The socket, the keys that may report, and the connections."""

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", keys: DaemonKeys | None, on_closed: Callable[[Reason], None]
    ) -> None:
        """`on_closed` is called for each connection that is closed because it exceeded a limit."""
        self.socket = context.socket(zmq.ROUTER)
        self._authenticator: zmq.auth.thread.ThreadAuthenticator | None = None
        self.keys: KeyWatch | None = None
        """None where no keys are used."""
        configure(self.socket)
        if keys is not None:
            self._encrypt(context, keys)
        self.connections = ReportConnections(self.socket, on_closed, is_encrypted=keys is not None)

    def _encrypt(self, context: "zmq.Context[zmq.Socket[bytes]]", keys: DaemonKeys) -> None:
        self._authenticator = zmq.auth.thread.ThreadAuthenticator(context)
        self._authenticator.start()
        self.keys = KeyWatch(keys.agents_dir)
        self._authenticator.configure_curve_callback(domain="*", credentials_provider=self.keys)
        self.socket.curve_publickey = keys.public
        self.socket.curve_secretkey = keys.secret
        self.socket.curve_server = True

    def bind(self, endpoint: str) -> str:
        """Binds and returns the real endpoint (port 0 becomes a free one)."""
        if endpoint.startswith("tcp://["):
            self.socket.setsockopt(zmq.IPV6, 1)
        self.socket.bind(endpoint)
        return self.socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def key_of(self, received: Received) -> str | None:
        """The key of a message's connection, empty where no keys are used; None if it was revoked."""
        return "" if self.keys is None else self.keys.key_of(received)

    def close(self) -> None:
        """Closes the socket and all its connections."""
        if self._authenticator is not None:
            self._authenticator.stop()
        self.connections.stop()
        self.socket.close(linger=0)
