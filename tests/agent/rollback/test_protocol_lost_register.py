"""A rank whose register is slow, frozen or gone, or whose helper is: in doubt only if it was armed, never for long."""

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import HashStore

from caboose.rollback.errors import RollbackInDoubt
from caboose.rollback.group import connect, serve
from support.commands import PlainActions, a_command
from support.gates import Gates, go
from support.processes import wait_until
from support.stopwatch import seconds_of

pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def gates() -> Iterator[Gates]:
    made = Gates()
    yield made
    made.close()


def test_a_helper_that_dies_leaves_the_loop_alone(gates: Gates) -> None:
    def fail() -> HashStore:
        raise TypeError("a fault of ours")

    coordinator = gates.build(open_store=fail)
    coordinator.offer(a_command())

    assert seconds_of(lambda: go(coordinator, 1, 20)) < 0.3
    assert not coordinator.is_connected


class RottenStore:
    """A connection with a fault of ours in it, from some moment on."""

    def __init__(self, store: HashStore) -> None:
        self.store = store
        self.is_rotten = False

    def __getattr__(self, name: str) -> Any:
        if self.is_rotten:
            raise TypeError("a fault of ours")
        return getattr(self.store, name)


def test_a_helper_that_dies_with_its_rank_armed_leaves_it_in_doubt_at_once(gates: Gates) -> None:
    store = RottenStore(HashStore())
    actions = PlainActions()
    coordinator = gates.build(actions, store=store, world=2)
    gates.arm(coordinator, world=2)
    store.is_rotten = True
    begun = time.monotonic()
    with pytest.raises(RollbackInDoubt):
        go(coordinator, 1, 10)

    assert time.monotonic() - begun < 5
    assert actions.acted == []


def test_a_connection_that_breaks_is_opened_anew(gates: Gates) -> None:
    store = HashStore()
    num_opened = 0

    class BreakingStore:
        """Fails once, at its third use."""

        def __init__(self) -> None:
            self.num_left = 3 if num_opened == 1 else 10**9

        def __getattr__(self, name: str) -> Any:
            self.num_left -= 1
            if self.num_left == 0:
                raise ConnectionResetError("broken")
            return getattr(store, name)

    def open_store() -> Any:
        nonlocal num_opened
        num_opened += 1
        return BreakingStore()

    actions = PlainActions()
    coordinator = gates.build(actions, open_store=open_store)
    gates.arm(coordinator)
    go(coordinator, 1, 12)

    assert num_opened == 2
    assert actions.acted == [(1, 10)]


@pytest.fixture
def server() -> Iterator[tuple[int, int]]:
    """Process id and port of a store in a process of its own."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=_serve_for_ever, args=(there,), daemon=True)
    process.start()
    assert here.poll(10)
    assert process.pid is not None
    yield process.pid, here.recv()
    process.kill()
    process.join(5)


def _serve_for_ever(pipe: Connection) -> None:
    server = serve("127.0.0.1")
    pipe.send(server.port)
    while True:
        signal.pause()


def freeze(pid: int) -> None:
    """Stops a process; returns when the last of its threads stands still."""
    os.kill(pid, signal.SIGSTOP)
    tasks = list(Path(f"/proc/{pid}/task").iterdir())
    assert wait_until(lambda: all(_state(task) == "T" for task in tasks), 5)


def _state(task: Path) -> str:
    return (task / "stat").read_text().rpartition(")")[2].split()[0]


def test_a_frozen_register_leaves_the_rank_in_doubt(gates: Gates, server: tuple[int, int]) -> None:
    pid, port = server
    actions = PlainActions()
    coordinator = gates.build(actions, open_store=lambda: connect("127.0.0.1", port), doubt_seconds=1.0)
    gates.arm(coordinator)
    go(coordinator, 1, 9)
    freeze(pid)
    begun = time.monotonic()
    with pytest.raises(RollbackInDoubt, match="was due after step 10"):
        coordinator.pass_boundary(10)

    assert 1.0 <= time.monotonic() - begun < 10
    assert actions.acted == []
    assert gates.answers[-1].outcome == "failed"
    with pytest.raises(RollbackInDoubt):
        coordinator.pass_boundary(11)
    assert seconds_of(lambda: coordinator.close(0.2)) < 1
    os.kill(pid, signal.SIGCONT)


def test_a_frozen_register_does_not_touch_a_rank_that_is_not_armed(gates: Gates, server: tuple[int, int]) -> None:
    pid, port = server
    coordinator = gates.build(open_store=lambda: connect("127.0.0.1", port))
    assert wait_until(lambda: coordinator.is_connected, 5)
    freeze(pid)
    coordinator.offer(a_command())

    assert seconds_of(lambda: go(coordinator, 1, 1000)) < 0.3
    assert seconds_of(lambda: coordinator.close(0.2)) < 1
    os.kill(pid, signal.SIGCONT)


def test_a_register_that_is_gone_leaves_an_armed_rank_in_doubt_at_once(gates: Gates, server: tuple[int, int]) -> None:
    pid, port = server
    coordinator = gates.build(open_store=lambda: connect("127.0.0.1", port), world=2, gate_seconds=5.0)
    gates.arm(coordinator, world=2)
    os.kill(pid, signal.SIGKILL)
    begun = time.monotonic()
    with pytest.raises(RollbackInDoubt):
        go(coordinator, 1, 10)

    assert time.monotonic() - begun < 4
