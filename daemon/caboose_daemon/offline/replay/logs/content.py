"""A file's bytes, unpacked where it is gzipped, whatever its name is."""

import codecs
import gzip
from pathlib import Path
from typing import BinaryIO, cast

GZIP = b"\x1f\x8b"
HEAD_BYTES = 64 * 1024
"""Bytes at the start of a file that are enough to recognise its format."""


def opened(path: Path) -> BinaryIO:
    """The file, to be read from its beginning."""
    with path.open("rb") as file:
        is_gzip = file.read(2) == GZIP
    return cast(BinaryIO, gzip.open(path, "rb")) if is_gzip else path.open("rb")


def head(path: Path) -> bytes:
    """The file's beginning."""
    with opened(path) as file:
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
