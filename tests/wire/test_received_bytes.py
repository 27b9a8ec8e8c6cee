"""The kernel's count of a connection, also after its descriptor became another file's."""

import os
import socket
import sys

import pytest

from caboose_wire.received_bytes import ReceivedBytes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the count is Linux's")


def connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        return near, server.accept()[0]


def test_every_byte_is_counted_whoever_reads_it() -> None:
    near, far = connected()
    with near, far:
        count = ReceivedBytes(near.fileno())
        assert count.read() == 0
        far.sendall(bytes(70_000))
        near.recv(70_000, socket.MSG_WAITALL)
        assert count.read() == 70_000
        far.sendall(b"unread")
        near.recv(1, socket.MSG_PEEK)
        assert count.read() == 70_006


def test_a_descriptor_that_became_another_file_is_not_counted() -> None:
    (near, far), others = connected(), connected()
    with near, far, others[0], others[1]:
        count = ReceivedBytes(near.fileno())
        os.dup2(others[0].fileno(), near.fileno())
        assert count.read() is None
        assert ReceivedBytes(near.fileno()).read() == 0, "it is a connection"


def test_what_is_no_connection_has_no_count() -> None:
    with open(os.devnull) as file, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        assert ReceivedBytes(file.fileno()).read() is None
        assert ReceivedBytes(datagrams.fileno()).read() is None
    assert ReceivedBytes(10_000).read() is None
