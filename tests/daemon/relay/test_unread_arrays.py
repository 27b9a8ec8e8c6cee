"""Arrays that the daemon does not read leave a relay once, or not at all; whatever the tree."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from caboose_daemon.relay.unread_arrays import UnreadArrays
from caboose_wire import Message, StepReport, decode, encode
from caboose_wire.bundles import HELLO, Parcel
from caboose_wire.messages import HISTOGRAM_BINS, LOWEST_RANK_ARRAYS
from support.ranks import a_hello, a_report

NAME = "activation_histogram"
OTHERS = ("grad_norm", "weight_norm", "activation_std", "activation_max", "activation_dead", "layer_fingerprint")


def sampled(rank: int, step: int = 100, **changes: Any) -> StepReport:
    arrays = {name: np.full(4, rank + number, dtype=np.float32) for number, name in enumerate(OTHERS)}
    arrays[NAME] = np.full((2, HISTOGRAM_BINS), rank, dtype=np.float32)
    return a_report(step, is_sampled=True, arrays=arrays, **changes)


def parcel(number: int, message: Message) -> Parcel:
    frames = encode(message)
    return Parcel(number, frames)


def hello(number: int, rank: int, job: str = "train") -> Parcel:
    return Parcel(number, encode(a_hello(rank=rank, world=64, job=job)), HELLO, b"", (bytes(16), bytes(16)))


def reports(parcels: Sequence[Parcel]) -> dict[int, StepReport]:
    found = {}
    for one in parcels:
        message = decode(one.frames) if one.kind != HELLO else None
        if isinstance(message, StepReport):
            found[one.rank] = message
    return found


def test_the_array_of_the_lowest_rank_is_left() -> None:
    hellos = [hello(number, rank=9 - number) for number in range(8)]
    found = reports(UnreadArrays().reduce([*hellos, *(parcel(number, sampled(9 - number)) for number in range(8))]))
    assert [number for number, report in found.items() if NAME in report.arrays] == [7]
    for number, report in found.items():
        expected = sampled(9 - number)
        assert all((report.arrays[name] == expected.arrays[name]).all() for name in OTHERS)
        assert report.step == 100
        assert report.is_sampled
        assert repr(report.phases) == repr(expected.phases)


def test_other_jobs_and_steps_are_apart() -> None:
    hellos = [hello(0, 0), hello(1, 1), hello(2, 2, job="other")]
    sent = [parcel(0, sampled(0)), parcel(1, sampled(1, step=200)), parcel(2, sampled(2))]
    assert all(NAME in report.arrays for report in reports(UnreadArrays().reduce([*hellos, *sent])).values())


def test_ranks_that_are_not_known_keep_theirs() -> None:
    sent = [parcel(number, sampled(number)) for number in range(3)]
    assert UnreadArrays().reduce(sent) == sent


def test_an_empty_array_stands_for_none() -> None:
    empty = sampled(0)
    empty.arrays[NAME] = np.zeros((0, HISTOGRAM_BINS), dtype=np.float32)
    found = reports(UnreadArrays().reduce([hello(0, 0), hello(1, 1), parcel(0, empty), parcel(1, sampled(1))]))
    assert len(found[1].arrays[NAME])


@pytest.mark.parametrize(("value", "is_left"), [(0.1, False), (-1.0, False), (math.nan, True), (math.inf, True)])
def test_the_own_gradients_of_a_rank_are_left_where_they_are_not_finite(value: float, is_left: bool) -> None:
    report = sampled(1)
    report.arrays["local_grad_norm"] = np.array([0.1, value, 0.3, 0.4], dtype=np.float32)
    found = reports(UnreadArrays().reduce([hello(0, 0), hello(1, 1), parcel(0, sampled(0)), parcel(1, report)]))
    assert ("local_grad_norm" in found[1].arrays) is is_left
    assert (found[1].arrays["weight_norm"] == report.arrays["weight_norm"]).all()


def lowest(found: dict[int, StepReport]) -> float | None:
    """As the daemon reads it."""
    return next((float(found[rank].arrays[NAME][0, 0]) for rank in sorted(found) if NAME in found[rank].arrays), None)


@given(st.permutations(range(8)), st.lists(st.integers(0, 3), min_size=8, max_size=8), st.lists(st.integers(0, 1)))
def test_any_tree_leaves_the_same(order: list[int], leaf_of: list[int], top_of: list[int]) -> None:
    """Each rank is behind a leaf, the leaves behind one of two relays: merges in any grouping and order."""
    sent = {rank: parcel(rank, sampled(rank)) for rank in order}
    hellos = {rank: hello(rank, rank) for rank in order}
    middle: dict[int, list[Parcel]] = {}
    for leaf in range(4):
        mine = [rank for rank in order if leaf_of[rank] == leaf]
        some = UnreadArrays().reduce([*(hellos[rank] for rank in mine), *(sent[rank] for rank in mine)])
        middle.setdefault(top_of[leaf] if leaf < len(top_of) else 0, []).extend(some)
    whole = [one for some in middle.values() for one in UnreadArrays().reduce(some)]
    assert lowest(reports(whole)) == lowest(reports(list(sent.values()))) == 0.0
    assert frozenset({NAME}) == LOWEST_RANK_ARRAYS
