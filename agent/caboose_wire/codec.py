"""Encodes messages as multipart frames and decodes them, within limits.

Design
------
Frame 0 is two bytes: version and message type. Frame 1 is the struct as msgpack. A report's arrays follow, one frame
each, raw little-endian float32, described in the header by name and shape: per-layer numbers are most of the traffic,
and decoding them is a view on the received bytes. Several reports in one message (StepReports) have their arrays one
report after the other, within the limits of one message.

Everything is checked before anything is allocated from a length the peer chose: frame sizes first, then the
typed msgpack decode with its own length limits, then each array's byte count against its declared shape.
`decode` raises WireError and nothing else, whatever the bytes.
"""

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from caboose_wire.errors import WireError
from caboose_wire.fields import Float32
from caboose_wire.messages import (
    Bye,
    Event,
    Heartbeat,
    Hello,
    HelloRequest,
    Message,
    Refused,
    StepReport,
    StepReports,
    StepRun,
    Verdict,
    Welcome,
)
from caboose_wire.rollback import Ack, Command, Holdings, Plan, PlanRequest, Terms

VERSION = 1

MAX_HEADER_BYTES = 64 * 1024
MAX_HELLO_BYTES = 8 * 1024 * 1024
"""A Hello names every layer: fits 65,536 layers of 100 bytes."""
MAX_ARRAY_BYTES = 8 * 1024 * 1024
MAX_REPORT_BYTES = 16 * 1024 * 1024
MAX_ARRAYS = 64
MAX_FRAMES = 2 + MAX_ARRAYS
"""Of a message: its type, its header and its arrays."""
MAX_FRAME_BYTES = max(MAX_HELLO_BYTES, MAX_ARRAY_BYTES)
"""For ZeroMQ's MAXMSGSIZE, which applies to each frame."""

TYPES: dict[int, type[Message]] = {
    1: Hello,
    2: StepReport,
    3: Event,
    4: Heartbeat,
    5: Bye,
    6: Ack,
    7: Holdings,
    8: PlanRequest,
    9: StepReports,
    10: StepRun,
    65: Command,
    66: HelloRequest,
    67: Refused,
    68: Terms,
    69: Plan,
    70: Verdict,
    71: Welcome,
}
_CODES = {cls: code for code, cls in TYPES.items()}
_DTYPE = np.dtype("<f4")
HELLO_START = bytes((VERSION, _CODES[Hello]))
"""The first frame of a Hello, by which it is known before anything is decoded."""
REPORT_STARTS = frozenset(bytes((VERSION, _CODES[kind])) for kind in (StepReport, StepReports, StepRun))
"""Those of reports."""


def _shape_of(value: Any) -> list[int]:
    if isinstance(value, np.ndarray):
        return list(value.shape)
    raise TypeError(f"{type(value).__name__} cannot be encoded")


def _shape_array(_: type, shape: Any) -> Any:
    """Placeholder for an array while the header is decoded: its shape, until its frame is read."""
    if not isinstance(shape, list) or len(shape) not in (1, 2):
        raise ValueError("an array must have one or two dimensions")
    for size in shape:
        if type(size) is not int or not 0 <= size <= MAX_ARRAY_BYTES:
            raise ValueError("an array's sizes must be whole numbers within the limits")
    return _placeholder(tuple(shape))


@functools.lru_cache(maxsize=1024)
def _placeholder(shape: tuple[int, ...]) -> Any:
    """The sizes as an array: jobs have few shapes, and each report has up to sixteen arrays."""
    return np.array(shape, dtype=np.int64)


_encoder = msgspec.msgpack.Encoder(enc_hook=_shape_of)
_decoders: dict[int, msgspec.msgpack.Decoder[Message]] = {
    code: msgspec.msgpack.Decoder(cls, dec_hook=_shape_array) for code, cls in TYPES.items()
}


def encode(message: Message) -> list[bytes]:
    """Frames of a message, ready for `send_multipart`; WireError if it is over the limits."""
    code = _CODES[type(message)]
    frames = [bytes((VERSION, code))]
    try:
        frames.append(_encoder.encode(message))
        for report in _reports_of(message):
            for array in report.arrays.values():
                frames.append(np.ascontiguousarray(array, dtype=_DTYPE).tobytes())
    except (TypeError, ValueError, OverflowError) as error:
        raise WireError("malformed", f"{type(message).__name__} cannot be encoded: {error}") from error
    _check_sizes(code, frames)
    return frames


def _reports_of(message: Message) -> Sequence[StepReport]:
    if isinstance(message, StepReport):
        return (message,)
    if isinstance(message, StepRun):
        return (message.first,)
    return message.reports if isinstance(message, StepReports) else ()


def _check_sizes(code: int, frames: Sequence[bytes]) -> None:
    if len(frames[1]) <= MAX_HEADER_BYTES and len(frames) <= MAX_FRAMES and sum(map(len, frames)) <= MAX_ARRAY_BYTES:
        return  # as most messages: all of them together exceed no limit of one
    limit = MAX_HELLO_BYTES if TYPES[code] is Hello else MAX_HEADER_BYTES
    if len(frames[1]) > limit:
        raise WireError("oversize", f"header of {len(frames[1])} bytes, the limit is {limit}")
    if len(frames) > MAX_FRAMES:
        raise WireError("oversize", f"{len(frames) - 2} arrays, the limit is {MAX_ARRAYS}")
    sizes = list(map(len, frames))
    if len(sizes) > 2 and max(sizes[2:]) > MAX_ARRAY_BYTES:
        raise WireError("oversize", f"array of {max(sizes[2:])} bytes, the limit is {MAX_ARRAY_BYTES}")
    total = sum(sizes)
    if total > MAX_REPORT_BYTES:
        raise WireError("oversize", f"message of {total} bytes, the limit is {MAX_REPORT_BYTES}")


def decode(frames: Sequence[bytes]) -> Message:
    """The message in these frames; raises only WireError."""
    if len(frames) < 2:
        raise WireError("truncated", f"{len(frames)} frames, a message has at least 2")
    if len(frames[0]) != 2:
        raise WireError("malformed", f"first frame has {len(frames[0])} bytes, expected version and type")
    version, code = frames[0]
    if version != VERSION:
        raise WireError("version", f"peer uses version {version}, this side uses {VERSION}")
    if code not in TYPES:
        raise WireError("type", f"unknown message type {code}")
    _check_sizes(code, frames)
    try:
        message = _decoders[code].decode(frames[1])
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise WireError("malformed", f"{TYPES[code].__name__}: {error}") from error
    reports = _reports_of(message)
    num_arrays = len(reports[0].arrays) if len(reports) == 1 else sum(len(report.arrays) for report in reports)
    if num_arrays != len(frames) - 2:
        raise WireError("truncated", f"{num_arrays} arrays announced, {len(frames) - 2} sent")
    if num_arrays:
        unread = iter(frames[2:])
        for report in reports:
            _fill(report.arrays, unread)
    return message


def _fill(arrays: dict[str, Float32], frames: Iterator[bytes]) -> None:
    """Reads a report's arrays from the next frames; so far each is its shape."""
    for name, shape in tuple(arrays.items()):
        frame, sizes = next(frames), shape.tolist()
        if math.prod(sizes) * _DTYPE.itemsize != len(frame):
            raise WireError("truncated", f"array {name[:64]!r}: {len(frame)} bytes for shape {sizes}")
        values = np.frombuffer(frame, dtype=_DTYPE)
        arrays[name] = values if len(sizes) == 1 else values.reshape(sizes)
