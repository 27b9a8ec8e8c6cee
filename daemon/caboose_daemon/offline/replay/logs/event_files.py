"""TensorBoard's event files, one or a directory's, read with the tensorboard package where it is installed.

Design
------
A file is records of (length, checksum, event, checksum). tensorboard's own loader computes the checksums in Python,
which takes longer than all the rest, so records are separated here and only their events are left to tensorboard's
protobuf classes; a damaged record shows as an event that cannot be parsed. A last record cut short is left out: the
run may still be writing it.

Every quantity is a separate event; `scalars` puts them together. Files of a directory follow each other in the order
they were begun.
"""

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from caboose_daemon.offline.replay.logs.content import unpacked
from caboose_daemon.offline.replay.logs.log import LogError
from caboose_daemon.offline.replay.logs.scalars import table_of_scalars
from caboose_daemon.offline.replay.logs.table import Table

NAME = "tfevents"
"""What the name of every event file contains."""
INSTALL = "pip install tensorboard"
MAX_RECORD_BYTES = 1 << 30
_LENGTH = struct.Struct("<Q")


def is_event_file(start: bytes) -> bool:
    """Whether a file begins as event files do, with a record of their version."""
    return b"brain.Event:" in start[:64]


def read_event_files(shown: Path, files: list[Path]) -> Table:
    """The table the event files of one run hold; `shown` is what the user named."""
    parse, number = _tensorboard(shown)
    steps: list[int] = []
    tags: list[str] = []
    values: list[float] = []
    for file in sorted(files, key=lambda file: (_begun(file, parse), file)):
        for event in _events(file, parse):
            for value in event.summary.value:
                found = number(value)
                if found is not None:
                    steps.append(event.step)
                    tags.append(value.tag)
                    values.append(found)
    if not steps:
        raise LogError(f"{shown}: an event file without scalars yet; try again when the run has logged its first step")
    return table_of_scalars(shown, steps, tags, values)


def _begun(file: Path, parse: Callable[[bytes], Any]) -> float:
    return next((float(event.wall_time) for event in _events(file, parse)), 0.0)


def _events(file: Path, parse: Callable[[bytes], Any]) -> Iterator[Any]:
    position = 0
    with unpacked(file) as stream:
        while len(start := stream.read(12)) == 12:
            (length,) = _LENGTH.unpack_from(start)
            if length > MAX_RECORD_BYTES:
                raise LogError(f"{file}: damaged at byte {position}: a record of {length} bytes; is it an event file?")
            record = stream.read(length + 4)
            if len(record) < length + 4:
                return
            try:
                event = parse(record[:-4])
            except ValueError as error:
                raise LogError(f"{file}: damaged at byte {position}: {error}; is it an event file?") from None
            yield event
            position += 16 + length


def _tensorboard(shown: Path) -> tuple[Callable[[bytes], Any], Callable[[Any], float | None]]:
    """A parser of events, and a reader of the number in one value, or None."""
    try:
        from google.protobuf.message import DecodeError
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.util.tensor_util import make_ndarray
    except ImportError:
        raise LogError(f"{shown}: TensorBoard's event files are read with tensorboard: {INSTALL}") from None

    def parse(record: bytes) -> Any:
        try:
            return Event.FromString(record)
        except DecodeError as error:
            raise ValueError(str(error)) from None

    def number(value: Any) -> float | None:
        kind = value.WhichOneof("value")
        if kind == "simple_value":
            return float(value.simple_value)
        if kind != "tensor" or value.tensor.tensor_shape.dim or value.metadata.plugin_data.plugin_name == "text":
            return None
        try:
            found = make_ndarray(value.tensor)
            return float(found) if found.dtype.kind in "fiu" else None
        except (TypeError, ValueError):
            return None  # a tensor of some other kind

    return parse, number
