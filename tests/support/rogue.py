"""A daemon's end of the wire in its own hand, for what no ZeroMQ socket would send: frames without end."""

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator

_GREETING = b"\xff" + bytes(7) + b"\x01\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
_READY = b"\x05READY" + b"\x0bSocket-Type" + struct.pack(">I", 6) + b"ROUTER"


def endless_frame(body: bytes) -> bytes:
    """One frame as ZMTP 3 writes it, with more to follow."""
    return (bytes((1, len(body))) if len(body) < 256 else b"\x03" + struct.pack(">Q", len(body))) + body


class Rogue:
    """Accepts connections, and sends frames that are never the last to each, as fast as they are taken."""

    def __init__(self, frame_bytes: int) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._server.getsockname()[1]}"
        self._endless = endless_frame(b"x" * frame_bytes)
        self._connections: list[socket.socket] = []
        self.num_connections = 0
        self.num_sent = 0
        """Bytes of endless frames that left, all connections together."""
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                self._connections.append(connection)
                self.num_connections += 1
                thread = threading.Thread(target=self._flood, args=(connection,))
                self._threads.append(thread)
                thread.start()

    def _flood(self, connection: socket.socket) -> None:
        many = self._endless * max(1, 65_536 // len(self._endless))
        with contextlib.suppress(OSError):
            connection.sendall(_GREETING)
            connection.recv(64, socket.MSG_WAITALL)
            connection.sendall(b"\x04" + bytes((len(_READY),)) + _READY)
            while True:
                connection.sendall(many)
                self.num_sent += len(many)

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)
        for connection in self._connections:
            connection.close()


@contextlib.contextmanager
def rogue(frame_bytes: int = 1000) -> Iterator[Rogue]:
    """A rogue daemon, closed with the block."""
    made = Rogue(frame_bytes)
    try:
        yield made
    finally:
        made.close()
