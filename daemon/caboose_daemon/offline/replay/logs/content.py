"""A file's bytes, unpacked where it is gzipped, whatever its name is, and within limits.

Design
------
A log is somebody else's file, and a small gzip may unpack to any size. Readers hold a line, or a whole JSON document,
in memory. So the stream counts what it hands out and raises LogError where a line or the file is longer than any log.
"""

import codecs
import gzip
import io
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from caboose_daemon.offline.replay.logs.log import LogError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

GZIP = b"\x1f\x8b"
HEAD_BYTES = 64 * 1024
"""Bytes at the start of a file that are enough to recognise its format."""


MAX_LINE_BYTES = 16 * 1024 * 1024
MAX_JSON_BYTES = 256 * 1024 * 1024
"""Of a JSON file, which is read as a whole."""
MAX_DOCUMENT_BYTES = 64 * 1024 * 1024
"""Of a JSON file that is one document: its objects take up to 16 times as much."""


class _Bounded(io.RawIOBase):
    """A stream that raises LogError where a line, or all of it, is too long."""

    def __init__(self, path: Path, stream: BinaryIO, max_line: int, max_bytes: int | None) -> None:
        self._path, self._stream = path, stream
        self._max_line, self._max_bytes = max_line, max_bytes
        self._line = self._total = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        view = memoryview(buffer)
        chunk = self._stream.read(len(view))
        view[: len(chunk)] = chunk
        newline = chunk.rfind(b"\n")
        self._line = self._line + len(chunk) if newline < 0 else len(chunk) - 1 - newline
        self._total += len(chunk)
        if self._line > self._max_line:
            raise LogError(f"{self._path}: a line of more than {self._max_line >> 20} MiB; this is no training log")
        if self._max_bytes is not None and self._total > self._max_bytes:
            limit = f"{self._max_bytes >> 20} MiB"
            raise LogError(f"{self._path}: more than {limit} of JSON, which is read as a whole; convert it to CSV")
        return len(chunk)

    def close(self) -> None:
        self._stream.close()
        super().close()


def opened(path: Path, *, max_line: int = MAX_LINE_BYTES, max_bytes: int | None = None) -> BinaryIO:
    """The file, to be read from its beginning, within these limits."""
    stream = unpacked(path)
    return io.BufferedReader(_Bounded(path, stream, max_line, max_bytes), 128 * 1024)


def unpacked(path: Path) -> BinaryIO:
    """The file without limits, for readers of binary records that have their own."""
    with path.open("rb") as file:
        is_gzip = file.read(2) == GZIP
    return cast(BinaryIO, gzip.open(path, "rb")) if is_gzip else path.open("rb")


def head(path: Path) -> bytes:
    """The file's beginning."""
    with unpacked(path) as file:
        return file.read(HEAD_BYTES)


def encoding(start: bytes) -> str:
    """How a text file is encoded, by its mark; Excel and PowerShell write UTF-16 or mark UTF-8."""
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    return "utf-8-sig"


def as_utf8(data: bytes) -> bytes:
    """A whole text file in plain UTF-8."""
    if encoding(data) == "utf-16":
        return data.decode("utf-16", errors="replace").encode(errors="replace")
    return data.removeprefix(codecs.BOM_UTF8)
