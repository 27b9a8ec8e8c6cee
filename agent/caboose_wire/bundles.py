"""Bundles: the messages of many ranks in one, between a relay and the daemon, or the next relay.

Design
------
A bundle's first frame is version and type as of every message, so a daemon of an earlier version refuses it by its
type. The header follows as msgpack, with the version of the body's layout; then the body, cut into frames; then the
tables of Hellos that the bundle brings (`hello_tables`). The body is one *parcel* after the other, little-endian:

    number of the rank (4 bytes), kind (1), first frame of the message (2), number of its other frames (1)
    of a Hello: length of the key (1), the key, the digests of its tables (16 each)
    of each frame: its length (4) and its bytes; or, with the highest bit set, the number of an equal one before it

Messages stay as their rank encoded them, whatever its version: a report means the same with and without relays. What is
equal is there once: frames of `MIN_SHARED_BYTES` and more in a bundle (a command to all ranks, the fingerprints of
replicas), and the tables on a connection. A relay numbers its ranks, and uses no number twice while it runs.

`unpack` raises WireError and nothing else, and allocates nothing from a length that it did not check.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import msgspec

from caboose_wire.codec import MAX_ARRAY_BYTES, MAX_FRAMES, MAX_REPORT_BYTES, VERSION
from caboose_wire.errors import WireError
from caboose_wire.fields import Count, Name, Seconds, Time
from caboose_wire.hello_tables import DIGEST_BYTES, KINDS, digest_of

LAYOUT = 1
UP_START, DOWN_START = bytes((VERSION, 11)), bytes((VERSION, 72))
"""The first frames, by which bundles are known. No message of `codec.TYPES` has these types."""
MAX_PARCELS = 1024
MAX_BODY_BYTES = MAX_REPORT_BYTES + 1024 * 1024
"""The largest message of a rank fits."""
MAX_WHOLE_BYTES = 64 * 1024 * 1024
"""Of all messages of a bundle, what is there once counted as often as it is meant."""
CHUNK_BYTES = MAX_ARRAY_BYTES // 2
MAX_TABLES = 16
MAX_RELAYS = 1024
"""Whose health one bundle has."""
MIN_SHARED_BYTES = 48
MESSAGE, HELLO, GONE = 0, 1, 2
_PARCEL = struct.Struct("<IB2sB")
_SIZE = struct.Struct("<I")
_SHARED = 1 << 31


class RelayHealth(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a relay reports about itself, every few seconds; counts are since its start."""

    name: Name
    version: Name = ""
    started: Time = 0.0
    depth: Count = 1
    """Relays on the way to the farthest of its ranks, itself included."""
    num_ranks: Count = 0
    """Connected ranks, of its relays too."""
    num_messages: Count = 0
    num_bundles: Count = 0
    received_bytes: Count = 0
    sent_bytes: Count = 0
    num_dropped: Count = 0
    """Messages that were dropped because the buffer was full."""
    num_refused: Count = 0
    buffered_bytes: Count = 0
    """Of messages that wait to be sent."""
    buffered_seconds: Seconds = 0.0
    """For how long the oldest of them has waited."""


class _Header(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    layout: Count
    num_parcels: Annotated[int, msgspec.Meta(ge=0, le=MAX_PARCELS)] = 0
    tables: Annotated[tuple[bytes, ...], msgspec.Meta(max_length=MAX_TABLES)] = ()
    """Digests of the tables that follow."""
    health: Annotated[tuple[RelayHealth, ...], msgspec.Meta(max_length=MAX_RELAYS)] = ()
    is_forgetful: bool = False


class _Layout(msgspec.Struct):
    """The part of the header that every version can read."""

    layout: Count


@dataclass(frozen=True, slots=True)
class Parcel:
    """One message of a rank, or for it."""

    rank: int
    """As the relay numbers it."""
    frames: Sequence[bytes]
    """None of a rank that is gone."""
    kind: int = MESSAGE
    key: bytes = b""
    """Of a Hello: the key of the rank's connection."""
    tables: tuple[bytes, ...] = ()
    """Of a Hello: the digests of what was taken out of it."""

    @property
    def size(self) -> int:
        """Bytes in a bundle, at most."""
        own = _PARCEL.size + 4 * len(self.frames) + sum(map(len, self.frames))
        return own if self.kind != HELLO else own + 1 + len(self.key) + DIGEST_BYTES * len(KINDS)


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle that was received."""

    parcels: Sequence[Parcel] = ()
    tables: Mapping[bytes, bytes] = field(default_factory=dict)
    """Encoded tables by their digests, which are checked."""
    health: Sequence[RelayHealth] = ()
    is_forgetful: bool = False
    """Down: the daemon does not know a table (any more), so all are to be sent again with the next Hellos."""


_encoder = msgspec.msgpack.Encoder()
_header_decoder = msgspec.msgpack.Decoder(_Header)
_layout_decoder = msgspec.msgpack.Decoder(_Layout)


def pack(
    start: bytes,
    parcels: Sequence[Parcel],
    *,
    tables: Mapping[bytes, bytes] | None = None,
    health: Iterable[RelayHealth] = (),
    is_forgetful: bool = False,
) -> list[bytes]:
    """The frames of a bundle; `start` is `UP_START` or `DOWN_START`."""
    tables = tables or {}
    header = _Header(
        layout=LAYOUT,
        num_parcels=len(parcels),
        tables=tuple(tables),
        health=tuple(health),
        is_forgetful=is_forgetful,
    )
    body = _body(parcels)
    chunks = [body[at : at + CHUNK_BYTES] for at in range(0, len(body), CHUNK_BYTES)]
    return [start, _encoder.encode(header), *chunks, *tables.values()]


def _body(parcels: Sequence[Parcel]) -> bytes:
    out: list[bytes] = []
    shared: dict[bytes, int] = {}
    for parcel in parcels:
        frames = parcel.frames
        out.append(_PARCEL.pack(parcel.rank, parcel.kind, frames[0] if frames else b"", max(0, len(frames) - 1)))
        if parcel.kind == HELLO:
            out += (bytes((len(parcel.key),)), parcel.key, *parcel.tables)
        for frame in frames[1:]:
            num = len(frame)
            if num >= MIN_SHARED_BYTES:
                if (number := shared.get(frame)) is not None:
                    out.append(_SIZE.pack(_SHARED | number))
                    continue
                shared[frame] = len(shared)
            out += (_SIZE.pack(num), frame)
    return b"".join(out)


def unpack(frames: Sequence[bytes]) -> Bundle:
    """The bundle in these frames; raises only WireError."""
    if not 2 <= len(frames) <= MAX_FRAMES:
        raise WireError("truncated", f"bundle of {len(frames)} frames")
    header = _read_header(frames[1])
    first_table = len(frames) - len(header.tables)
    if first_table < 2:
        raise WireError("truncated", f"{len(header.tables)} tables announced, {len(frames) - 2} frames sent")
    if sum(map(len, frames[2:first_table])) > MAX_BODY_BYTES:
        raise WireError("oversize", f"body over {MAX_BODY_BYTES} bytes")
    tables = dict(zip(header.tables, frames[first_table:], strict=True))
    if any(digest_of(table) != digest for digest, table in tables.items()):
        raise WireError("malformed", "a table has another digest than announced")
    body = frames[2] if first_table == 3 else b"".join(frames[2:first_table])
    try:
        parcels = _read_parcels(body, header.num_parcels)
    except (struct.error, IndexError) as error:
        raise WireError("truncated", f"bundle: {error}") from None
    return Bundle(parcels, tables, header.health, header.is_forgetful)


def _read_header(frame: bytes) -> _Header:
    try:
        layout = _layout_decoder.decode(frame).layout
        if layout != LAYOUT:
            raise WireError("version", f"bundle with layout {layout}, this side reads layout {LAYOUT}")
        return _header_decoder.decode(frame)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        if isinstance(error, WireError):
            raise
        raise WireError("malformed", f"bundle: {error}") from error


def _read_parcels(body: bytes, num_parcels: int) -> list[Parcel]:
    parcels: list[Parcel] = []
    shared: list[bytes] = []
    at = whole = 0
    end = len(body)
    read_parcel, read_size = _PARCEL.unpack_from, _SIZE.unpack_from
    for _ in range(num_parcels):
        rank, kind, first, num_frames = read_parcel(body, at)
        at += _PARCEL.size
        key = b""
        tables: tuple[bytes, ...] = ()
        if kind == HELLO:
            num_key = body[at]
            key = body[at + 1 : at + 1 + num_key]
            at += 1 + num_key
            tables = tuple(body[at + DIGEST_BYTES * n : at + DIGEST_BYTES * (n + 1)] for n in range(len(KINDS)))
            at += DIGEST_BYTES * len(KINDS)
        elif kind not in (MESSAGE, GONE):
            raise WireError("malformed", f"bundle: parcel of kind {kind}")
        frames = [first] if kind != GONE else []
        for _ in range(num_frames):
            (size,) = read_size(body, at)
            at += 4
            if size & _SHARED:
                frame = shared[size & ~_SHARED]
            else:
                frame = body[at : at + size]
                at += size
                if at > end:
                    raise WireError("truncated", "bundle: a frame ends beyond its body")
                if size >= MIN_SHARED_BYTES:
                    shared.append(frame)
            whole += len(frame)
            frames.append(frame)
        if whole > MAX_WHOLE_BYTES:
            raise WireError("oversize", f"bundle: its messages have over {MAX_WHOLE_BYTES} bytes")
        parcels.append(Parcel(rank, frames, kind, key, tables))
    if at != end:
        raise WireError("malformed", f"bundle: {end - at} bytes behind the last parcel")
    return parcels
