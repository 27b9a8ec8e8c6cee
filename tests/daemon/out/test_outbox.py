"""What is slow or broken behind an outbox costs its own queue, and nothing else."""

import logging
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from caboose_daemon.jobs.state import ExportCounts
from caboose_daemon.out.outbox import ExportOutbox, one_line
from support.processes import wait_until


class Shelf:
    """A target that keeps what it is given, once it is let."""

    name = "shelf"

    def __init__(self) -> None:
        self.kept: list[int] = []
        self.num_rests = 0
        self.is_closed = False
        self.is_open = threading.Event()
        self.is_open.set()
        self.is_waiting = threading.Event()
        self.broken_on: Callable[[int], bool] = lambda item: False

    def take(self, item: int) -> None:
        self.is_waiting.set()
        self.is_open.wait(20)
        if self.broken_on(item):
            raise OSError(28, "No space left\non device")
        self.kept.append(item)

    def flush(self) -> None:
        self.num_rests += 1

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def shelf() -> Iterator[Shelf]:
    target = Shelf()
    yield target
    target.is_open.set()


def test_everything_arrives_in_order_and_is_written_out_at_the_end(shelf: Shelf) -> None:
    outbox = ExportOutbox(shelf, ExportCounts())
    outbox.start()
    for item in range(100):
        outbox.put(item)
    outbox.close(20)

    assert shelf.kept == list(range(100))
    assert shelf.is_closed
    assert shelf.num_rests >= 1
    assert outbox.tally == ExportCounts(num_sent=100)


def test_a_target_that_hangs_loses_the_oldest_and_nobody_waits(shelf: Shelf) -> None:
    shelf.is_open.clear()
    outbox = ExportOutbox(shelf, ExportCounts(), capacity=10)
    outbox.start()
    outbox.put(-1)
    assert shelf.is_waiting.wait(20)

    began = time.perf_counter()
    for item in range(10_000):
        outbox.put(item)
    took = time.perf_counter() - began

    assert outbox.tally.num_dropped == 10_000 - 10
    assert took < 5.0, "half a millisecond each, on a machine with other things to do"
    shelf.is_open.set()
    outbox.close(20)
    assert shelf.kept == [-1, *range(9_990, 10_000)], "the newest are there"
    assert outbox.tally.num_sent == 11


def test_the_end_does_not_wait_for_a_target_that_hangs(shelf: Shelf, caplog: pytest.LogCaptureFixture) -> None:
    shelf.is_open.clear()
    outbox = ExportOutbox(shelf, ExportCounts())
    outbox.start()
    for item in range(3):
        outbox.put(item)
    assert shelf.is_waiting.wait(20)

    outbox.close(0.05)

    assert "shelf: not delivered before shutdown: 2 items" in caplog.text


def test_failures_are_counted_and_logged_once_until_it_works_again(
    shelf: Shelf, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="caboose.daemon")
    shelf.broken_on = lambda item: item < 5 or item >= 7
    outbox = ExportOutbox(shelf, ExportCounts())
    outbox.start()
    for item in range(9):
        outbox.put(item)
    outbox.close(20)

    assert shelf.kept == [5, 6]
    assert outbox.tally == ExportCounts(num_sent=2, num_failed=7)
    fails = "shelf failed: [Errno 28] No space left on device; further failures are only counted"
    assert [record.getMessage() for record in caplog.records] == [fails, "shelf works again", fails]


def test_what_is_held_back_is_written_out_while_it_goes_on(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("caboose_daemon.out.outbox.FLUSH_SECONDS", 0.01)
    outbox = ExportOutbox(shelf, ExportCounts())
    outbox.start()
    outbox.put(1)

    assert wait_until(lambda: shelf.num_rests, 20) == 1, "once, and not again while nothing came"
    outbox.close(20)


def test_an_outbox_that_never_started_can_be_closed(shelf: Shelf) -> None:
    ExportOutbox(shelf, ExportCounts()).close()


def test_an_error_is_told_in_one_line() -> None:
    assert one_line(ValueError("a\n  b")) == "a b"
    assert one_line(KeyError()) == "KeyError"
    assert len(one_line(ValueError("x" * 1000))) == 300
