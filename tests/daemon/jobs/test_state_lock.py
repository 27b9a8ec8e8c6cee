"""The state's lock: handed over in order, and held by readers for little more than copying references."""

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from caboose_daemon.jobs.fair_lock import FairLock
from caboose_daemon.jobs.state import COPIED_AT_ONCE
from caboose_daemon.out.metrics.collector import StateCollector
from caboose_daemon.out.web.status import StatusBoard
from support.ranks import a_hello, a_report
from support.recorder import Core
from support.scenario import scenario
from support.served import served

# Fairness


def test_waiters_are_served_in_the_order_in_which_they_came() -> None:
    lock, order, threads = FairLock(), [], []
    with lock:
        for number in range(5):
            thread = threading.Thread(target=_append, args=(lock, order, number))
            thread.start()
            while len(lock._waiters) <= number:
                threading.Event().wait(0.001)
            threads.append(thread)
        assert lock.is_wanted
    for thread in threads:
        thread.join(5)
    assert order == [0, 1, 2, 3, 4]
    assert not lock.is_wanted


def _append(lock: FairLock, order: list[int], number: int) -> None:
    with lock:
        order.append(number)


def test_the_same_thread_may_take_it_again() -> None:
    lock = FairLock()
    with lock, lock:
        pass
    with lock:
        pass
    assert lock._owner is None


def test_whoever_takes_it_again_and_again_keeps_nobody_out() -> None:
    lock, ending, num_turns = FairLock(), threading.Event(), 0

    def loop() -> None:
        nonlocal num_turns
        while not ending.is_set():
            with lock:
                num_turns += 1

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        worst = 0
        for _ in range(200):
            before = num_turns
            with lock:
                pass
            worst = max(worst, num_turns - before)
    finally:
        ending.set()
        thread.join(5)
    assert num_turns > 200
    assert worst < 100_000, "a waiter is next in line, however busy the owner is"


def test_only_its_owner_releases_it() -> None:
    with pytest.raises(AssertionError, match="only its owner"):
        FairLock().release()


# What readers do under it


class CountingLock(FairLock):
    """Counts the calls that are made while it is held, hold by hold."""

    def __init__(self) -> None:
        super().__init__()
        self.holds: list[int] = []
        self._num_calls = 0

    def acquire(self) -> None:
        super().acquire()
        if self._depth == 1:
            self._num_calls = 0
            sys.setprofile(self._count)

    def release(self) -> None:
        if self._depth == 1:
            sys.setprofile(None)
            self.holds.append(self._num_calls)
        super().release()

    def _count(self, frame: FrameType, event: str, argument: Any) -> None:
        self._num_calls += event in ("call", "c_call")


CALLS_PER_JOB = 60
"""Calls that copying one job takes, with room for a few more."""


def a_job(ranks: int) -> Core:
    """One job, all of whose ranks have reported."""
    core = Core()
    for rank in range(ranks):
        core.say(b"%d" % rank, a_hello(rank=rank, world=ranks, incarnation=f"incarnation-{rank}"))
        core.say(b"%d" % rank, a_report(1))
    core.pass_time(10.0)
    assert core.state.jobs["train"].num_steps == 1
    return core


@pytest.fixture(scope="module")
def wide() -> Core:
    return a_job(4096)


@pytest.fixture(scope="module")
def many() -> Core:
    """1,000 jobs."""
    core = Core()
    for number in range(1000):
        hello = a_hello(job=f"job-{number}", world=1, incarnation=f"incarnation-{number}")
        core.say(b"%d" % number, hello, 0.1 * number)
    assert len(core.state.jobs) == 1000
    return core


def _scrape(core: Core) -> None:
    registry = CollectorRegistry()
    registry.register(StateCollector(core.state, lambda: 11.0))
    generate_latest(registry)


def _status(job: str | None) -> Callable[[Core], None]:
    return lambda core: StatusBoard(core.state, lambda: 11.0, 3).message(job, None) and None


@pytest.mark.parametrize("read", [_scrape, _status("train"), _status(None)], ids=["scrape", "status", "list"])
def test_a_reader_holds_the_lock_as_briefly_with_4096_ranks_as_with_one(
    wide: Core, read: Callable[[Core], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow, holds = a_job(1), []
    for core in (narrow, wide):
        lock = CountingLock()
        monkeypatch.setattr(core.state, "lock", lock)
        read(core)
        holds.append(max(lock.holds))

    assert holds[1] <= holds[0] + 10


@pytest.mark.parametrize("read", [_scrape, _status(None)], ids=["scrape", "list"])
def test_a_reader_of_1000_jobs_lets_the_loop_in_between(
    many: Core, read: Callable[[Core], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = CountingLock()
    monkeypatch.setattr(many.state, "lock", lock)

    read(many)

    assert len(lock.holds) >= 1000 / COPIED_AT_ONCE
    assert max(lock.holds) < COPIED_AT_ONCE * CALLS_PER_JOB


# Copies


def test_a_copy_stays_as_it_was() -> None:
    story = scenario(ranks=2).healthy(10).nan_loss(0, at=11).declares("data_switch")
    copy = story.core.state.copy_of("train")
    assert copy is not None
    before = (list(copy.recent), list(copy.incidents), list(copy.episodes), list(copy.events), copy.num_steps)

    story.healthy(20).declares("data_switch").nan_loss(1, at=40).leaves(0, 1)

    assert (list(copy.recent), list(copy.incidents), list(copy.episodes), list(copy.events), copy.num_steps) == before
    assert copy.attempt is not None
    assert len(copy.attempt.members) == 2
    assert story.core.state.copy_of("nothing") is None


# The loop lets readers in


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Any]:
    with served(tmp_path) as daemon:
        yield daemon


def test_the_loop_steps_aside_between_two_jobs_for_whoever_waits(daemon: Any) -> None:
    loop, lock, seen = daemon._loop, daemon.state.lock, []
    done = threading.Event()

    def read() -> None:
        with lock:
            seen.append("reader")
        done.set()

    with lock:
        thread = threading.Thread(target=read)
        thread.start()
        while not lock.is_wanted:
            threading.Event().wait(0.001)
        seen.append("before")
        loop._step_aside()
        assert done.wait(5)
        seen.append("after")
    thread.join(5)
    assert seen == ["before", "reader", "after"]
