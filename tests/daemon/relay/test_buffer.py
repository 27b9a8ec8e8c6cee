"""What waits in a relay is bounded, and what is dropped is counted."""

from hypothesis import given
from hypothesis import strategies as st

from caboose_daemon.relay.buffer import PARCEL_BYTES, Buffer
from caboose_wire.bundles import Parcel


def parcel(rank: int, num_bytes: int = 100) -> Parcel:
    return Parcel(rank, [b"\x01\x02", bytes(num_bytes)])


def test_the_oldest_is_dropped_and_counted() -> None:
    buffer = Buffer(10 * (parcel(0).size + PARCEL_BYTES))
    for rank in range(15):
        buffer.add(parcel(rank), float(rank))
    assert [one.rank for one in buffer.next()] == list(range(5, 15))
    assert buffer.num_dropped == 5
    assert buffer.waited(20.0) == 15.0


def test_one_larger_than_the_bound_is_kept() -> None:
    buffer = Buffer(10)
    buffer.add(parcel(1), 0.0)
    assert len(buffer) == 1


@given(st.lists(st.one_of(st.integers(0, 3000), st.just("send")), max_size=60))
def test_bytes_are_those_of_what_waits(actions: list[int | str]) -> None:
    buffer, num_added, num_sent = Buffer(20_000), 0, 0
    for action in actions:
        if isinstance(action, int):
            buffer.add(parcel(num_added, action), 0.0)
            num_added += 1
        else:
            some = buffer.next()
            buffer.sent(len(some))
            num_sent += len(some)
    waiting = list(buffer.next())
    assert buffer.num_bytes == sum(one.size + PARCEL_BYTES for one in waiting) <= 20_000
    assert num_added == num_sent + len(waiting) + buffer.num_dropped
