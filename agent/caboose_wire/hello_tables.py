"""Takes a Hello apart: what is the same on most ranks of a job, and what is this rank's own.

Design
------
A Hello names every layer, so it is some hundred times as large as what differs between two ranks. A relay sends these
*tables* once, by digest, and each rank's Hello without them. It moves encoded fields without reading them: fields of
newer agents, and what this side does not know, stay in the Hello as they are.
"""

import hashlib
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from caboose_wire.codec import MAX_HELLO_BYTES
from caboose_wire.errors import WireError
from caboose_wire.fields import MAX_GROUPS, MAX_LAYERS, MAX_PARTS, Name, Settings
from caboose_wire.messages import Group, Hello, Layer, Module, Part

DIGEST_BYTES = 16


class ModelTables(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The fields of a Hello that describe the model."""

    layers: Annotated[tuple[Layer, ...], msgspec.Meta(max_length=MAX_LAYERS)] = ()
    groups: Annotated[tuple[Group, ...], msgspec.Meta(max_length=MAX_GROUPS)] = ()
    modules: Annotated[tuple[Module, ...], msgspec.Meta(max_length=MAX_LAYERS)] = ()
    parts: Annotated[tuple[Part, ...], msgspec.Meta(max_length=MAX_PARTS)] = ()


class SettingsTables(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The fields that describe settings, and what the agent sees."""

    visible: Annotated[tuple[Name, ...], msgspec.Meta(max_length=64)] = ()
    blind: Annotated[dict[Name, Name], msgspec.Meta(max_length=64)] = {}
    config: Settings = {}
    facts: Settings = {}


Tables = ModelTables | SettingsTables
KINDS: tuple[type[Tables], ...] = (ModelTables, SettingsTables)
_FIELDS = tuple(tuple(field.name for field in msgspec.structs.fields(kind)) for kind in KINDS)
_split = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])
_encoder = msgspec.msgpack.Encoder()
_decoders: tuple[msgspec.msgpack.Decoder[Any], ...] = tuple(map(msgspec.msgpack.Decoder, KINDS))


def digest_of(table: bytes) -> bytes:
    """What an encoded table is known by."""
    return hashlib.sha256(table).digest()[:DIGEST_BYTES]


def take_apart(hello: bytes) -> tuple[bytes, tuple[bytes, ...]]:
    """An encoded Hello without its tables, and the tables in the order of `KINDS`; WireError if it is none."""
    try:
        fields = _split.decode(hello)
        tables = [_encoder.encode({name: fields.pop(name) for name in names if name in fields}) for names in _FIELDS]
        return _encoder.encode(fields), tuple(tables)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise WireError("malformed", f"Hello: {error}") from error


def read_table(place: int, table: bytes) -> Tables:
    """A decoded table of the kind at this place; WireError if it is none."""
    if len(table) > MAX_HELLO_BYTES:
        raise WireError("oversize", f"table of {len(table)} bytes, the limit is {MAX_HELLO_BYTES}")
    try:
        found: Tables = _decoders[place].decode(table)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise WireError("malformed", f"{KINDS[place].__name__}: {error}") from error
    return found


def put_together(hello: Hello, tables: Sequence[Tables]) -> Hello:
    """The whole Hello again. The tables are shared by all ranks that have equal ones."""
    whole = {name: getattr(table, name) for table, names in zip(tables, _FIELDS, strict=True) for name in names}
    return msgspec.structs.replace(hello, **whole)
