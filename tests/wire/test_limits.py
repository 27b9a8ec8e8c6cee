"""What a peer may send at most; every limit is checked before anything of the claimed size is made."""

import time
import tracemalloc
from typing import Any

import msgspec
import numpy as np
import pytest

from caboose_wire import Bye, Hello, Layer, StepReport, WireError, decode, encode
from caboose_wire.codec import (
    MAX_ARRAY_BYTES,
    MAX_ARRAYS,
    MAX_FRAME_BYTES,
    MAX_HEADER_BYTES,
    MAX_HELLO_BYTES,
    MAX_REPORT_BYTES,
)
from caboose_wire.fields import MAX_GROUPS, MAX_LAYERS, MAX_RANKS
from support.ranks import a_hello, a_report

HELLO, REPORT, EVENT, BYE, ACK, COMMAND = (bytes((1, code)) for code in (1, 2, 3, 5, 6, 65))
NAN = float("nan")


def report_header(**changes: Any) -> bytes:
    fields = {"attempt": 0, "seq": 1, "step": 1, "model_step": 1, "time": 1.0, **changes}
    return msgspec.msgpack.encode(fields)


def hello_header(**changes: Any) -> bytes:
    fields = {"job": "j", "rank": 0, "world": 1, "host": "h", "pid": 1, "incarnation": "12345678", **changes}
    return msgspec.msgpack.encode(fields)


def report_with_raw(name: str, raw: bytes) -> bytes:
    """A report's header whose field `name` is whatever msgpack these bytes claim to be."""
    plain = report_header()
    return bytes([plain[0] + 1]) + plain[1:] + msgspec.msgpack.encode(name) + raw


def shaped(shape: Any, *frames: bytes) -> list[bytes]:
    return [REPORT, report_header(arrays={"x": shape}), *frames]


BAD_FRAMES = {
    # how many frames, and the first one
    "no frames": ([], "truncated"),
    "only version and type": ([REPORT], "truncated"),
    "empty first frame": ([b"", report_header()], "malformed"),
    "first frame too short": ([b"\x01", report_header()], "malformed"),
    "first frame too long": ([b"\x01\x02\x00", report_header()], "malformed"),
    "version of the future": ([b"\x02\x02", report_header()], "version"),
    "version zero": ([b"\x00\x02", report_header()], "version"),
    "unknown type": ([b"\x01\x63", report_header()], "type"),
    # sizes
    "header too large": ([REPORT, b"\x00" * (MAX_HEADER_BYTES + 1)], "oversize"),
    "hello too large": ([HELLO, b"\x00" * (MAX_HELLO_BYTES + 1)], "oversize"),
    "too many arrays": ([REPORT, report_header(), *[b""] * (MAX_ARRAYS + 1)], "oversize"),
    "too many frames for a message without arrays": ([BYE, b"\x80", *[b""] * (MAX_ARRAYS + 1)], "oversize"),
    "array too large": (shaped([1], bytes(MAX_ARRAY_BYTES + 4)), "oversize"),
    "arrays too large together": (
        [REPORT, report_header(arrays={n: [2**21] for n in "abc"}), *[bytes(MAX_ARRAY_BYTES)] * 3],
        "oversize",
    ),
    # arrays against their frames
    "fewer bytes than the shape": (shaped([3], bytes(8)), "truncated"),
    "more bytes than the shape": (shaped([3], bytes(16)), "truncated"),
    "bytes that are no whole float": (shaped([3], bytes(11)), "truncated"),
    "announced array missing": (shaped([3]), "truncated"),
    "array that was not announced": ([REPORT, report_header(), bytes(12)], "truncated"),
    "array on a message that has none": (
        [BYE, msgspec.msgpack.encode({"attempt": 0, "step": 0, "time": 1.0}), b""],
        "truncated",
    ),
    "one name twice, two frames": (
        [REPORT, report_with_raw("arrays", b"\x82\xa1x\x91\x01\xa1x\x91\x01"), bytes(4), bytes(4)],
        "truncated",
    ),
    # shapes
    "no dimensions": (shaped([], bytes(4)), "malformed"),
    "three dimensions": (shaped([1, 1, 1], bytes(4)), "malformed"),
    "negative size": (shaped([-1], bytes(4)), "malformed"),
    "two negative sizes that multiply well": (shaped([-1, -1], bytes(4)), "malformed"),
    "size beyond the limit": (shaped([2**62, 2], b""), "malformed"),
    "sizes that overflow when multiplied": (shaped([2**23, 2**23], bytes(4)), "truncated"),
    "size that is a float": (shaped([1.0], bytes(4)), "malformed"),
    "size that is a boolean": (shaped([True], bytes(4)), "malformed"),
    "size that is a text": (shaped(["1"], bytes(4)), "malformed"),
    "shape that is a number": (shaped(1, bytes(4)), "malformed"),
    "shape that is nothing": (shaped(None, bytes(4)), "malformed"),
    # msgpack
    "empty header": ([REPORT, b""], "malformed"),
    "header cut short": ([REPORT, report_header()[:-1]], "malformed"),
    "bytes after the header": ([REPORT, report_header() + b"\x00"], "malformed"),
    "header that is a list": ([REPORT, msgspec.msgpack.encode([1, 2, 3])], "malformed"),
    "missing field": ([REPORT, msgspec.msgpack.encode({"attempt": 0})], "malformed"),
    "text that is not UTF-8": ([REPORT, report_with_raw("metrics", b"\x81\xa2\xff\xfe\x01")], "malformed"),
    "lone surrogate": ([REPORT, report_with_raw("metrics", b"\x81\xa3\xed\xa0\x80\x01")], "malformed"),
    "list said to have 4 billion entries": ([REPORT, report_with_raw("lr", b"\xdd\xff\xff\xff\xff")], "malformed"),
    "map said to have 4 billion entries": ([REPORT, report_with_raw("arrays", b"\xdf\xff\xff\xff\xff")], "malformed"),
    "shape said to have 4 billion entries": (
        [REPORT, report_with_raw("arrays", b"\x81\xa1x\xdd\xff\xff\xff\xff")],
        "malformed",
    ),
    "unknown field said to have 4 billion entries": (
        [REPORT, report_with_raw("z", b"\xdd\xff\xff\xff\xff")],
        "malformed",
    ),
    "text said to have 4 GB": ([REPORT, report_with_raw("z", b"\xdb\xff\xff\xff\xff")], "malformed"),
    "deep nesting in a shape": (
        [REPORT, report_with_raw("arrays", b"\x81\xa1x" + b"\x91" * 60_000 + b"\x01")],
        "malformed",
    ),
    "deep nesting in an unknown field": ([REPORT, report_with_raw("z", b"\x91" * 60_000 + b"\x01")], "malformed"),
    # fields
    "negative step": ([REPORT, report_header(step=-1)], "malformed"),
    "step beyond 53 bits": ([REPORT, report_header(step=2**53 + 1)], "malformed"),
    "step that is a float": ([REPORT, report_header(step=1.5)], "malformed"),
    "time that is not a number": ([REPORT, report_header(time=NAN)], "malformed"),
    "time without end": ([REPORT, report_header(time=float("inf"))], "malformed"),
    "event at no time": (
        [EVENT, msgspec.msgpack.encode({"attempt": 0, "step": 0, "time": NAN, "kind": "x"})],
        "malformed",
    ),
    "event without a kind": (
        [EVENT, msgspec.msgpack.encode({"attempt": 0, "step": 0, "time": 1.0, "kind": ""})],
        "malformed",
    ),
    "too many learning rates": ([REPORT, report_header(lr=[0.1] * (MAX_GROUPS + 1))], "malformed"),
    "too many metrics": ([REPORT, report_header(metrics={str(i): 0.0 for i in range(257)})], "malformed"),
    "metric name too long": ([REPORT, report_header(metrics={"x" * 257: 0.0})], "malformed"),
    "job without a name": ([HELLO, hello_header(job="")], "malformed"),
    "job name too long": ([HELLO, hello_header(job="x" * 129)], "malformed"),
    "rank beyond the limit": ([HELLO, hello_header(rank=MAX_RANKS)], "malformed"),
    "world of nobody": ([HELLO, hello_header(world=0)], "malformed"),
    "world beyond the limit": ([HELLO, hello_header(world=MAX_RANKS + 1)], "malformed"),
    "incarnation too short": ([HELLO, hello_header(incarnation="1234567")], "malformed"),
    "too many layers": ([HELLO, hello_header(layers=[["l", 1]] * (MAX_LAYERS + 1))], "malformed"),
    "placement of another world": ([HELLO, hello_header(layers=[["l", 1, "", "elsewhere"]])], "malformed"),
    "outcome of another world": ([ACK, msgspec.msgpack.encode({"command": 1, "outcome": "perhaps"})], "malformed"),
    "command of another world": (
        [COMMAND, msgspec.msgpack.encode({"number": 1, "kind": "explode", "incarnation": "12345678"})],
        "malformed",
    ),
}


@pytest.mark.parametrize(("frames", "reason"), BAD_FRAMES.values(), ids=list(BAD_FRAMES))
def test_is_refused_for_its_reason(frames: list[bytes], reason: str) -> None:
    with pytest.raises(WireError) as caught:
        decode(frames)

    assert caught.value.reason == reason


def test_a_claimed_length_costs_neither_memory_nor_time() -> None:
    frames = [REPORT, report_with_raw("arrays", b"\x81\xa1x\xdd\xff\xff\xff\xff")]
    tracemalloc.start()
    try:
        start = time.perf_counter()
        with pytest.raises(WireError):
            decode(frames)
        seconds = time.perf_counter() - start
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 1_000_000
    assert seconds < 1.0


def test_what_stands_exactly_at_the_limits_passes() -> None:
    full = np.zeros(MAX_ARRAY_BYTES // 4, dtype=np.float32)
    arrays = {str(i): np.zeros(1, dtype=np.float32) for i in range(MAX_ARRAYS - 1)} | {"full": full}

    received = decode(encode(a_report(arrays=arrays)))

    assert isinstance(received, StepReport)
    assert len(received.arrays) == MAX_ARRAYS
    assert received.arrays["full"].shape == full.shape


def test_a_model_of_the_most_layers_with_long_names_fits_into_a_hello() -> None:
    layers = tuple(Layer(name=f"{i:090d}", numel=2**40, kind="Linear") for i in range(MAX_LAYERS))

    received = decode(encode(a_hello(layers=layers)))

    assert isinstance(received, Hello)
    assert received.layers == layers


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(a_report(metrics={f"{i:0200d}": 0.0 for i in range(400)}), id="header"),
        pytest.param(a_hello(layers=(Layer(name="x" * 256, numel=1),) * 40_000), id="hello"),
        pytest.param(a_report(arrays={str(i): np.zeros(1) for i in range(MAX_ARRAYS + 1)}), id="number of arrays"),
        pytest.param(a_report(arrays={"x": np.zeros(MAX_ARRAY_BYTES // 4 + 1)}), id="array"),
        pytest.param(a_report(arrays={n: np.zeros(MAX_ARRAY_BYTES // 4) for n in "abc"}), id="arrays together"),
        pytest.param(Bye(step=0, error="x" * (MAX_HEADER_BYTES + 1)), id="text"),
    ],
)
def test_what_is_over_the_limits_is_not_even_sent(message: Any) -> None:
    with pytest.raises(WireError, match="oversize"):
        encode(message)


def test_no_single_frame_is_larger_than_the_socket_lets_through() -> None:
    assert max(MAX_HEADER_BYTES, MAX_HELLO_BYTES, MAX_ARRAY_BYTES) <= MAX_FRAME_BYTES <= MAX_REPORT_BYTES
