"""A peer that speaks ZMTP by hand, so that it can send what no ZeroMQ library sends."""

import contextlib
import socket
import struct
from collections.abc import Iterator

GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
MORE, LONG = 1, 2


@contextlib.contextmanager
def raw_dealer(endpoint: str) -> Iterator[socket.socket]:
    """A connection whose handshake is done."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(GREETING)
        _read(connection, 64)
        ready = b"\x05READY" + _property(b"Socket-Type", b"DEALER") + _property(b"Identity", b"")
        connection.sendall(bytes((4, len(ready))) + ready)
        _read(connection, 2)
        yield connection


def frame(body: bytes, *, has_more: bool) -> bytes:
    """One frame of a message."""
    return bytes((LONG | (MORE if has_more else 0),)) + struct.pack(">Q", len(body)) + body


def _property(name: bytes, value: bytes) -> bytes:
    return bytes((len(name),)) + name + struct.pack(">I", len(value)) + value


def _read(connection: socket.socket, num: int) -> bytes:
    got = b""
    while len(got) < num:
        got += connection.recv(num - len(got))
    return got
