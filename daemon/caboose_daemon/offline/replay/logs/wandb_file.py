"""The file that W&B's library writes for each run, `run-ID.wandb`, read without that library.

Design
------
W&B dropped its own reader. The format is the log of LevelDB: blocks of 32 KiB with records in one or more pieces, after
a header of seven bytes. Each record is a protobuf message, of which only the history is needed: a step, and keys with
their values in JSON. Field numbers of a protobuf message never change, so the few that matter are read here. A last
record that is cut short is left out: the run may still be writing it.
"""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from caboose_daemon.offline.replay.logs.json_text import table_of_rows
from caboose_daemon.offline.replay.logs.log import LogError
from caboose_daemon.offline.replay.logs.table import Table

SUFFIX = ".wandb"
MAGIC = b":W&B"
BLOCK = 32 * 1024
MAX_FILE_BYTES = 4 << 30
_FILE_HEADER = 7
_PIECE = struct.Struct("<IHB")
"""Checksum, length, kind of a piece of a record."""
WHOLE, FIRST, MIDDLE, LAST = 1, 2, 3, 4
HISTORY, ITEM, STEP = 2, 1, 2
"""Fields of W&B's messages: of Record, and two of HistoryRecord."""
KEY, NESTED_KEY, VALUE_JSON = 1, 2, 16
"""Of HistoryItem."""


def read_wandb(path: Path) -> Table:
    """The table the file of a run holds."""
    rows = list(_rows(path))
    if not rows:
        raise LogError(f"{path}: a W&B run without history yet; try again when it has logged its first step")
    return table_of_rows(path, rows, lambda row: f"row {row + 1} of the history")


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    if path.stat().st_size > MAX_FILE_BYTES:
        raise LogError(f"{path}: more than {MAX_FILE_BYTES >> 30} GiB; export the history of the run as CSV")
    try:
        for record in _records(path):
            for field, history in _fields(record):
                if field == HISTORY and isinstance(history, bytes):
                    yield _row(history)
    except (IndexError, ValueError, struct.error) as error:
        raise LogError(f"{path}: damaged ({error}); export the history of the run as CSV") from None


def _row(history: bytes) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for field, value in _fields(history):
        if field == STEP and isinstance(value, bytes):
            row["_step"] = next((found for number, found in _fields(value) if number == 1), 0)
        elif field == ITEM and isinstance(value, bytes):
            key, nested, text = "", [], b""
            for number, found in _fields(value):
                if isinstance(found, bytes):
                    key = found.decode(errors="replace") if number == KEY else key
                    nested += [found.decode(errors="replace")] if number == NESTED_KEY else []
                    text = found if number == VALUE_JSON else text
            found_number = _number(text)
            if found_number is not None:
                row["/".join(nested) or key] = found_number
    return row


def _number(text: bytes) -> float | None:
    """A value that is a number; media, texts and histograms are left out."""
    if not text or len(text) > 64:
        return None
    try:
        found = json.loads(text)
        found = float(found) if isinstance(found, str) else found  # "NaN" and "Infinity" are written as texts
    except ValueError:
        return None
    return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else None


def _records(path: Path) -> Iterator[bytes]:
    """The records, each put together from its pieces."""
    with path.open("rb") as file:
        left = BLOCK - len(file.read(_FILE_HEADER))
        pieces: list[bytes] = []
        while True:
            if left < _PIECE.size:
                file.read(left)  # a block ends with zeros where no header fits
                left = BLOCK
            header = file.read(_PIECE.size)
            if len(header) < _PIECE.size:
                return
            _, length, kind = _PIECE.unpack(header)
            body = file.read(length)
            if len(body) < length:
                return
            left -= _PIECE.size + length
            if left < 0 or kind not in (WHOLE, FIRST, MIDDLE, LAST):
                raise ValueError(f"a piece of kind {kind} with {length} bytes")
            pieces = [body] if kind in (WHOLE, FIRST) else [*pieces, body]
            if kind in (WHOLE, LAST):
                yield b"".join(pieces)
                pieces = []


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a protobuf message: whole numbers, and bytes of texts, messages and fixed sizes."""
    position = 0
    while position < len(message):
        tag, position = _varint(message, position)
        kind = tag & 7
        if kind == 0:
            value, position = _varint(message, position)
            yield tag >> 3, value
            continue
        if kind == 2:
            length, position = _varint(message, position)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise ValueError(f"a field of kind {kind}")
        if position + length > len(message):
            raise ValueError("a field beyond the end of its record")
        yield tag >> 3, message[position : position + length]
        position += length


def _varint(message: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise ValueError("a number of more than 10 bytes")
