"""Bundles: what goes in comes out, whatever the bytes only WireError is raised, and equal frames are there once."""

import contextlib

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caboose_wire import Command, Hello, WireError, decode, encode
from caboose_wire.bundles import (
    DOWN_START,
    GONE,
    HELLO,
    MAX_PARCELS,
    UP_START,
    Parcel,
    RelayHealth,
    pack,
    unpack,
)
from caboose_wire.codec import TYPES
from caboose_wire.hello_tables import digest_of, put_together, read_table, take_apart
from support.ranks import a_hello, a_report

frames = st.lists(st.binary(max_size=120), max_size=5).map(lambda rest: [b"\x01\x02", *rest])
digests = st.tuples(st.binary(min_size=16, max_size=16), st.binary(min_size=16, max_size=16))
ranks = st.integers(0, 2**32 - 1)
parcels = st.one_of(
    st.builds(Parcel, ranks, frames),
    st.builds(Parcel, ranks, st.just([]), st.just(GONE)),
    st.builds(Parcel, ranks, frames, st.just(HELLO), st.binary(max_size=255), digests),
)


def test_bundles_have_types_that_no_message_has() -> None:
    assert not {UP_START[1], DOWN_START[1]} & TYPES.keys()


def test_an_earlier_daemon_refuses_a_bundle_by_its_type() -> None:
    with pytest.raises(WireError) as caught:
        decode(pack(UP_START, [Parcel(1, encode(a_report()))]))
    assert caught.value.reason == "type"


@given(st.lists(parcels, max_size=20), st.lists(st.binary(max_size=99), max_size=3, unique=True))
def test_what_goes_in_comes_out(sent: list[Parcel], contents: list[bytes]) -> None:
    tables = {digest_of(table): table for table in contents}
    health = [RelayHealth(name="node1", num_dropped=3)]
    found = unpack(pack(UP_START, sent, tables=tables, health=health, is_forgetful=True))
    assert list(found.parcels) == sent
    assert (found.tables, list(found.health), found.is_forgetful) == (tables, health, True)


@given(st.lists(parcels, min_size=1, max_size=6), st.data())
@settings(max_examples=300)
def test_whatever_the_bytes_only_a_wire_error_is_raised(sent: list[Parcel], data: st.DataObject) -> None:
    whole = pack(UP_START, sent, tables={digest_of(b"x"): b"x"})
    place = data.draw(st.integers(1, len(whole) - 1))
    damaged = bytearray(whole[place])
    for _ in range(data.draw(st.integers(1, 4))):
        if damaged:
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(damaged)))
    whole[place] = bytes(damaged[:cut] if data.draw(st.booleans()) else damaged)
    with contextlib.suppress(WireError):
        unpack(whole[: data.draw(st.integers(0, len(whole)))])


def test_another_layout_is_refused_as_such() -> None:
    whole = pack(UP_START, [])
    whole[1] = whole[1].replace(b"layout\x01", b"layout\x02")
    with pytest.raises(WireError, match="layout 2") as caught:
        unpack(whole)
    assert caught.value.reason == "version"


def test_equal_frames_are_there_once() -> None:
    command = encode(Command(number=1, kind="rollback", group="a" * 32, reason="x" * 200))
    one, many = (sum(map(len, pack(DOWN_START, [Parcel(n, command) for n in range(num)]))) for num in (1, 8))
    assert many < one + 8 * 16


def test_a_bundle_that_means_more_than_its_limit_is_refused() -> None:
    frame = b"x" * (1024 * 1024)
    with pytest.raises(WireError) as caught:
        unpack(pack(UP_START, [Parcel(n, [b"\x01\x02", frame]) for n in range(100)]))
    assert caught.value.reason == "oversize"


def test_a_table_must_have_its_digest() -> None:
    whole = pack(UP_START, [], tables={digest_of(b"table"): b"table"})
    with pytest.raises(WireError, match="digest"):
        unpack([*whole[:-1], b"other"])


def test_a_report_takes_little_more_than_alone() -> None:
    alone = encode(a_report(arrays={}))
    bundle = pack(UP_START, [Parcel(number, alone) for number in range(MAX_PARCELS)])
    different = pack(UP_START, [Parcel(n, encode(a_report(1000 + n, arrays={}))) for n in range(MAX_PARCELS)])
    size = sum(map(len, encode(a_report(1000, arrays={}))))
    assert sum(map(len, bundle)) < 0.2 * MAX_PARCELS * size
    assert sum(map(len, different)) <= 1.2 * MAX_PARCELS * size


def test_a_hello_is_whole_again_with_its_tables() -> None:
    hello = a_hello(config={"lr": 0.1}, facts={"dropout": 0.0}, blind={"loss": "none"})
    own, tables = take_apart(encode(hello)[1])
    assert len(own) < 200
    small = decode([encode(hello)[0], own])
    assert isinstance(small, Hello)
    assert small.layers == ()
    assert put_together(small, [read_table(place, table) for place, table in enumerate(tables)]) == hello


def test_fields_of_newer_agents_stay_in_the_hello() -> None:
    newer = {**msgspec.msgpack.decode(encode(a_hello())[1]), "newer": 7}
    own, _ = take_apart(msgspec.msgpack.encode(newer))
    assert msgspec.msgpack.decode(own)["newer"] == 7


def test_what_is_no_hello_is_refused() -> None:
    for encoded in (b"", b"\x01", b"\xc1", b"\x81"):
        with pytest.raises(WireError):
            take_apart(encoded)
    with pytest.raises(WireError):
        read_table(0, b"\x81\xa6layers\x05")
