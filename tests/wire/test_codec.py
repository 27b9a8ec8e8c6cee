"""Whatever is sent arrives as it was; whatever else arrives is a WireError and nothing worse."""

import math
from typing import Any, get_args

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from caboose_wire import (
    Ack,
    Bye,
    Command,
    Event,
    Group,
    Heartbeat,
    Held,
    Hello,
    HelloRequest,
    Holdings,
    Layer,
    Message,
    Part,
    Phases,
    Plan,
    PlannedCheckpoint,
    PlanRequest,
    Refused,
    StepReport,
    Terms,
    WireError,
    decode,
    encode,
)
from caboose_wire.codec import TYPES
from caboose_wire.errors import REASONS
from caboose_wire.fields import JOB_PATTERN, MAX_RANKS, Placement
from support.ranks import a_report
from support.record_frames import MESSAGES

numbers = st.floats(allow_nan=True, allow_infinity=True, width=64)
counts = st.integers(0, 2**53)
times = st.floats(0, 2**53)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
scalars = st.one_of(numbers, st.integers(-(2**63), 2**63 - 1), texts, st.booleans(), st.none())
some_settings = st.dictionaries(names, scalars, max_size=4)
arrays = npst.arrays(np.float32, npst.array_shapes(min_dims=1, max_dims=2, min_side=0, max_side=9))
layers = st.builds(
    Layer, name=names, numel=counts, kind=names, placement=st.sampled_from(get_args(Placement)), trainable=st.booleans()
)
groups = st.builds(Group, name=names, optimizer=names, settings=some_settings)
phases = st.builds(Phases, total=numbers, data=numbers, forward=numbers, backward=numbers, optimizer=numbers)
parts = st.builds(Part, name=names, layers=st.tuples(counts, counts), groups=st.tuples(counts, counts))
nonces = st.text("0123456789abcdef", min_size=8, max_size=64)

messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(
        Hello,
        job=st.from_regex(JOB_PATTERN, fullmatch=True),
        rank=st.integers(0, MAX_RANKS - 1),
        world=st.integers(1, MAX_RANKS),
        host=names,
        pid=counts,
        incarnation=nonces,
        launch=names,
        attempt=counts,
        started=times,
        layers=st.lists(layers, max_size=3).map(tuple),
        groups=st.lists(groups, max_size=2).map(tuple),
        visible=st.lists(names, max_size=3).map(tuple),
        blind=st.dictionaries(names, names, max_size=2),
        config=some_settings,
        parts=st.lists(parts, max_size=3).map(tuple),
    ),
    st.builds(
        StepReport,
        attempt=counts,
        seq=counts,
        step=counts,
        model_step=counts,
        time=times,
        loss=st.none() | numbers,
        num_samples=st.none() | counts,
        lr=st.lists(numbers, max_size=3).map(tuple),
        phases=st.none() | phases,
        metrics=st.dictionaries(names, numbers, max_size=3),
        local_grad_norm=st.none() | numbers,
        part_losses=st.lists(st.none() | numbers, max_size=16).map(tuple),
        agent_seconds=numbers,
        num_dropped=counts,
        slices=st.dictionaries(names, st.tuples(counts, counts), max_size=2),
        arrays=st.dictionaries(names, arrays, max_size=4),
    ),
    st.builds(Event, attempt=counts, step=counts, time=times, kind=names.filter(bool), fields=some_settings),
    st.builds(
        Heartbeat,
        step=counts,
        since_step_seconds=times,
        num_dropped=counts,
        num_failures=counts,
        state=names,
    ),
    st.builds(Bye, step=counts, error=texts),
    st.builds(
        Ack, command=counts, outcome=st.sampled_from(["accepted", "refused", "done", "aborted", "failed"]), detail=texts
    ),
    st.builds(
        Command,
        number=counts,
        kind=st.sampled_from(["rollback", "snapshot", "checkpoint", "scale_lr", "stop"]),
        group=nonces,
        boundary=counts,
        world=counts,
        target=counts,
        skip=counts,
        lr_scale=numbers,
        max_norm=numbers,
        expires=times,
        reason=names,
        mac=st.binary(max_size=64),
    ),
    st.builds(
        Holdings,
        group=nonces,
        last_number=counts,
        snapshots=st.lists(st.builds(Held, step=counts, model_step=counts, time=times), max_size=4).map(tuple),
        budget_left=counts,
        can_skip=st.booleans(),
    ),
    st.builds(PlanRequest, job=st.from_regex(JOB_PATTERN, fullmatch=True), world=counts),
    st.builds(
        Terms, rollback=st.sampled_from(["off", "advise", "auto"]), is_signed=st.booleans(), is_holding=st.booleans()
    ),
    st.builds(
        Plan,
        job=st.from_regex(JOB_PATTERN, fullmatch=True),
        checkpoints=st.lists(
            st.builds(
                PlannedCheckpoint,
                path=texts,
                step=counts,
                health=st.sampled_from(["healthy", "unproven", "tainted"]),
                reason=names,
                is_best=st.booleans(),
            ),
            max_size=3,
        ).map(tuple),
        skip=st.lists(st.tuples(counts, counts), max_size=3).map(tuple),
        lr_scale=numbers,
        reason=texts,
    ),
    st.builds(HelloRequest),
    st.builds(Refused, reason=names, detail=texts),
)


def same(a: Any, b: Any) -> bool:
    """Equality in which NaN equals itself and an array is its bytes."""
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()
    if isinstance(a, float) and isinstance(b, float) and math.isnan(a):
        return math.isnan(b)
    if isinstance(a, msgspec.Struct):
        return type(a) is type(b) and all(same(getattr(a, f), getattr(b, f)) for f in a.__struct_fields__)
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, tuple):
        return isinstance(b, tuple) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and bool(a == b)


@given(messages)
def test_every_message_arrives_as_it_was_sent(message: Message) -> None:
    assert same(decode(encode(message)), message)


@given(messages)
def test_every_message_can_be_sent_on_as_the_same_bytes(message: Message) -> None:
    frames = encode(message)

    assert encode(decode(frames)) == frames


def decodes_or_raises_wire_error(frames: list[bytes]) -> None:
    outcome: Message | WireError
    try:
        outcome = decode(frames)
    except WireError as error:
        outcome = error
    if isinstance(outcome, WireError):
        assert outcome.reason in REASONS
    else:
        assert type(outcome) in TYPES.values()
        if isinstance(outcome, StepReport):
            assert all(isinstance(array, np.ndarray) for array in outcome.arrays.values())


@given(st.lists(st.binary(max_size=64), max_size=6))
def test_arbitrary_frames_raise_nothing_but_wire_error(frames: list[bytes]) -> None:
    decodes_or_raises_wire_error(frames)


@given(st.sampled_from(sorted(TYPES)), st.binary(max_size=200), st.lists(st.binary(max_size=40), max_size=3))
def test_arbitrary_headers_of_known_types_raise_nothing_but_wire_error(
    code: int, header: bytes, rest: list[bytes]
) -> None:
    decodes_or_raises_wire_error([bytes((1, code)), header, *rest])


@settings(max_examples=300)
@given(st.sampled_from(MESSAGES), st.data())
def test_a_damaged_message_raises_nothing_but_wire_error(message: Message, data: st.DataObject) -> None:
    frames = [bytearray(frame) for frame in encode(message)]
    for _ in range(data.draw(st.integers(1, 4))):
        frame = data.draw(st.sampled_from(frames))
        damage = data.draw(st.sampled_from(["flip", "cut", "insert", "drop", "repeat"]))
        at = data.draw(st.integers(0, max(len(frame) - 1, 0)))
        if damage == "flip" and frame:
            frame[at] = data.draw(st.integers(0, 255))
        elif damage == "cut":
            del frame[at:]
        elif damage == "insert":
            frame[at:at] = data.draw(st.binary(max_size=6))
        elif damage == "drop" and len(frames) > 1:
            frames.remove(frame)
        else:
            frames.append(bytearray(frame))

    decodes_or_raises_wire_error([bytes(frame) for frame in frames])


@given(st.recursive(scalars | st.binary(max_size=8), lambda inner: st.lists(inner) | st.dictionaries(names, inner)))
def test_a_header_of_any_other_shape_raises_nothing_but_wire_error(value: Any) -> None:
    for code in TYPES:
        decodes_or_raises_wire_error([bytes((1, code)), msgspec.msgpack.encode(value)])


def test_fields_of_a_later_version_are_skipped() -> None:
    frames = encode(
        Bye(
            step=3,
        )
    )
    header = {**msgspec.msgpack.decode(frames[1]), "mood": "fine", "nested": {"a": [1, 2]}}

    assert decode([frames[0], msgspec.msgpack.encode(header)]) == Bye(
        step=3,
    )


def test_arrays_of_any_layout_and_type_travel_as_contiguous_float32() -> None:
    doubles = np.arange(12, dtype=np.float64).reshape(3, 4)
    sent = a_report(arrays={"reversed": doubles[::-1, ::2], "whole": np.arange(3)})

    received = decode(encode(sent))

    assert isinstance(received, StepReport)
    assert received.arrays["reversed"].tolist() == doubles[::-1, ::2].tolist()
    assert {array.dtype for array in received.arrays.values()} == {np.dtype("<f4")}


def test_decoding_does_not_copy_the_numbers() -> None:
    frames = encode(a_report())

    received = decode(frames)

    assert isinstance(received, StepReport)
    assert np.shares_memory(received.arrays["grad_norm"], np.frombuffer(frames[2], dtype=np.uint8))


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(Bye(step=0, error="\ud800"), id="lone surrogate"),
        pytest.param(Ack(command=2**70, outcome="done"), id="number beyond 64 bits"),
        pytest.param(Event(attempt=0, step=0, time=0.0, kind="x", fields={"x": object()}), id="arbitrary object"),
    ],
)
def test_what_cannot_be_encoded_is_a_wire_error(message: Message) -> None:
    with pytest.raises(WireError, match="malformed"):
        encode(message)


def test_an_error_carries_its_reason_for_the_counter() -> None:
    error = WireError("oversize", "too big")

    assert isinstance(error, ValueError)
    assert (error.reason, error.detail, str(error)) == ("oversize", "too big", "oversize: too big")
