"""How many bytes a TCP connection has received, from the kernel's own count.

Design
------
ZeroMQ delivers a message when its last frame has come, and limits the size of one frame only. A peer that never sends
the last frame makes it keep every frame so far, without any sign in its API. The kernel counts the bytes of each
connection, so the owner of a ZeroMQ socket can compare that count with the messages it got. The connection's descriptor
is in the events of the socket's monitor (`EVENT_CONNECTED`, `EVENT_ACCEPTED`).

The descriptor belongs to ZeroMQ and is only read here. When ZeroMQ closes it, its number may become another file's: the
inode tells them apart. Linux only; elsewhere the count is unknown.
"""

import ctypes
import os
import socket
import stat
import sys

_TCP_INFO = 11
_OFFSET = 128
"""Of `tcpi_bytes_received` in `struct tcp_info`, since Linux 4.1."""


class ReceivedBytes:
    """The count of one connection."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._inode = _inode(descriptor)
        self._buffer = ctypes.create_string_buffer(_OFFSET + 8)

    @property
    def is_open(self) -> bool:
        """Whether the descriptor is still that connection."""
        return self._inode is not None and _inode(self.descriptor) == self._inode

    def read(self) -> int | None:
        """Bytes since the connection was made; None once it is closed, and where they are not counted."""
        if _getsockopt is None or not self.is_open:
            return None
        size = ctypes.c_uint32(len(self._buffer))
        if _getsockopt(self.descriptor, socket.IPPROTO_TCP, _TCP_INFO, self._buffer, ctypes.byref(size)):
            return None
        if size.value < len(self._buffer):  # an older kernel
            return None
        return int.from_bytes(self._buffer.raw[_OFFSET:], sys.byteorder)


def _inode(descriptor: int) -> int | None:
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    return found.st_ino if stat.S_ISSOCK(found.st_mode) else None


_getsockopt = ctypes.CDLL(None).getsockopt if sys.platform == "linux" else None
