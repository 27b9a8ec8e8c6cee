"""A watched loader gives what the loader gives, but for the batches that are to be skipped after a rollback."""

import contextlib
import copy
import functools
import pickle  # noqa: TID251 - what users do; Caboose itself pickles nothing
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

import caboose
from caboose.observe.loader import BatchSkip, FetchWatch


def a_monitor() -> caboose.Monitor:
    return caboose.Monitor(None)


class Endless:
    """A loader without a length or an end."""

    def __iter__(self) -> Iterator[int]:
        number = 0
        while True:
            yield number
            number += 1


def test_the_next_batches_are_dropped_once() -> None:
    monitor = a_monitor()
    seen = []
    for batch in monitor.watch(range(10)):
        seen.append(batch)
        if batch == 3:
            assert monitor._skip.ask(4, crosses_epochs=False) == 4
    assert seen == [0, 1, 2, 3, 8, 9]
    assert monitor._skip.num_dropped == 4
    assert list(monitor.watch(range(3))) == [0, 1, 2]


def test_skipping_ends_with_the_epoch() -> None:
    monitor = a_monitor()
    loader = monitor.watch([0, 1, 2, 3])
    epochs: list[list[int]] = []
    for _ in range(2):
        epochs.append([])
        for batch in loader:
            epochs[-1].append(batch)
            if len(epochs) == 1 and batch == 1:
                monitor._skip.ask(3, crosses_epochs=False)
    assert epochs == [[0, 1], [0, 1, 2, 3]]


def left_by_break(loader: Iterable[int]) -> None:
    for batch in loader:
        if batch == 1:
            break


def left_by_an_exception(loader: Iterable[int]) -> None:
    with contextlib.suppress(RuntimeError):
        for batch in loader:
            if batch == 1:
                raise RuntimeError("evaluation failed")


def left_half_way(kept: list[Any], loader: Iterable[int]) -> None:
    """The iterator stays alive, as where a loop calls next by itself."""
    iterator = iter(loader)
    kept.append(iterator)
    assert [next(iterator), next(iterator)] == [0, 1]


KEPT: list[Any] = []
WAYS: dict[str, Callable[[Iterable[int]], None]] = {
    "break": left_by_break,
    "exception": left_by_an_exception,
    "a new iterator": functools.partial(left_half_way, KEPT),
}


@pytest.mark.parametrize("way", WAYS)
def test_skipping_ends_with_the_epoch_however_it_is_left(way: str) -> None:
    monitor = a_monitor()
    loader = monitor.watch([0, 1, 2, 3])
    WAYS[way](loader)
    assert monitor._skip.ask(3, crosses_epochs=False) == 3
    seen = []
    for batch in loader:
        KEPT.clear()  # an old one that is closed only now ends nothing of the new one
        seen.append(batch)
        if batch == 0:
            assert monitor._skip.ask(1, crosses_epochs=False) == 1
    assert seen == [0, 2, 3]


def test_an_epoch_that_is_gone_through_by_hand_skips_its_own_batches() -> None:
    monitor = a_monitor()
    iterator = iter(monitor.watch(range(6)))
    assert next(iterator) == 0
    monitor._skip.ask(2, crosses_epochs=False)
    assert list(iterator) == [3, 4, 5]


def test_it_goes_on_in_the_next_one_where_all_epochs_are_known_to_be_equally_long() -> None:
    monitor = a_monitor()
    loader = monitor.watch([0, 1, 2, 3])
    epochs: list[list[int]] = []
    for _ in range(2):
        epochs.append([])
        for batch in loader:
            epochs[-1].append(batch)
            if len(epochs) == 1 and batch == 1:
                monitor._skip.ask(3, crosses_epochs=True)
    assert epochs == [[0, 1], [1, 2, 3]]


def test_another_loader_in_between_is_not_touched() -> None:
    monitor = a_monitor()
    seen, validated = [], []
    for batch in monitor.watch(range(6)):
        seen.append(batch)
        if batch == 1:
            monitor._skip.ask(2, crosses_epochs=False)
            validated = list(monitor.watch(["a", "b", "c"]))
    assert validated == ["a", "b", "c"]
    assert seen == [0, 1, 4, 5]


def test_loaders_that_are_gone_through_side_by_side_stay_in_step() -> None:
    monitor = a_monitor()
    seen = []
    inputs, targets = iter(monitor.watch(range(20))), monitor.watch(range(10))
    for target in targets:
        pair = (next(inputs), next(inputs), target)  # two of one go with one of the other
        seen.append(pair)
        if len(seen) == 3:
            monitor._skip.ask(2, batches_per_step=monitor._skip.batches_per_step, crosses_epochs=False)
        monitor._skip.end_step()
    assert seen == [(2 * n, 2 * n + 1, n) for n in (0, 1, 2, 5, 6, 7, 8, 9)]


def test_batches_of_a_validation_before_the_boundary_are_not_taken_for_the_steps() -> None:
    monitor = a_monitor()
    seen = []
    validation = monitor.watch(["a", "b", "c"])
    for batch in monitor.watch(range(8)):
        list(validation)
        seen.append(batch)
        if batch == 1:
            assert monitor._skip.batches_per_step == 1
            assert monitor._skip.ask(1, crosses_epochs=True) == 1
        monitor._skip.end_step()
    assert seen == [0, 1, 3, 4, 5, 6, 7]
    assert list(validation) == ["a", "b", "c"]


def test_without_a_watched_loader_nothing_is_skipped() -> None:
    assert a_monitor()._skip.ask(5, crosses_epochs=False) == 0


def test_a_length_is_known_or_not() -> None:
    monitor = a_monitor()
    next(iter(monitor.watch(range(7))))
    assert monitor._skip.length() == 7
    next(iter(monitor.watch(Endless())))
    assert monitor._skip.length() == -1


class Sized:
    """A loader of a user's own, with settings."""

    def __init__(self, num: int) -> None:
        self.num = num

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.num))


def test_a_watched_loader_is_written_and_copied_as_the_loader_itself() -> None:
    loader = Sized(3)
    watched = a_monitor().watch(loader)
    for made in (copy.copy(watched), copy.deepcopy(watched), pickle.loads(pickle.dumps(watched))):
        assert type(made) is Sized
        assert (made is loader, made.num, list(made)) == (False, 3, [0, 1, 2])
    assert b"caboose" not in pickle.dumps(watched)


def test_the_fetches_of_a_framework_are_timed_and_counted() -> None:
    calls: list[object] = []
    watch = FetchWatch(
        mark=calls.append,
        on_epoch=lambda number: calls.append(("epoch", number)),
        on_batch=calls.append,
        skip=BatchSkip(),
    )
    watch.begin_epoch(3)
    assert list(watch.timed(iter("ab"))) == ["a", "b"]
    assert calls == [("epoch", 3), "data", "other", "a", "data", "other", "b", "data", "other"]


def test_batches_that_a_framework_fetches_are_dropped_in_steps_and_into_the_next_epoch_of_the_same_loader() -> None:
    skip, loader = BatchSkip(), list(range(12))
    watch = FetchWatch(mark=lambda phase: None, on_epoch=lambda number: None, on_batch=lambda batch: None, skip=skip)
    batches = iter(loader)
    assert [next(watch.timed(batches, loader)), next(watch.timed(batches, loader))] == [0, 1], "two a step"
    assert (skip.batches_per_step, skip.length()) == (2, 12)
    assert skip.ask(3, batches_per_step=2, crosses_epochs=True) == 6
    skip.end_step()

    assert list(watch.timed(batches, loader)) == [8, 9, 10, 11]
    assert skip.num_dropped == 6

    skip.end_step()
    again = iter(loader)
    assert next(watch.timed(again, loader)) == 0
    assert skip.ask(1, batches_per_step=1, crosses_epochs=True) == 1
    skip.end_step()
    third = iter(loader)
    assert next(watch.timed(third, loader)) == 1, "one more was to be dropped when the epoch ended"


def test_an_iterator_that_is_timed_is_otherwise_itself() -> None:
    class Counting(Iterator[int]):
        num = 0

        def __next__(self) -> int:
            self.num += 1
            return self.num

    inner = Counting()
    timed = a_monitor().watch_fetches().timed(inner)
    assert next(timed) == 1
    assert timed.num == inner.num == 1
