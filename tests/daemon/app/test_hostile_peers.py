"""A real daemon and peers that mean harm: it stays up, within its memory, and honest jobs are watched meanwhile."""

import contextlib
import socket
from typing import Any

import numpy as np
import psutil
import pytest

from caboose_daemon.app.flood_watch import (
    CHECK_SECONDS,
    GROWTH_BYTES,
    Connection,
    FloodWatch,
    connections,
)
from caboose_wire import Module
from support.processes import DaemonProcess, wait_until
from support.ranks import a_report, send_steps, simulated_ranks
from support.zmtp import frame, raw_dealer

MODULES = (Module("act", "ReLU", 8), Module("head", "Linear", 4))


def memory(daemon: DaemonProcess) -> int:
    return int(psutil.Process(daemon.process.pid).memory_info().rss)


@pytest.mark.slow
def test_a_message_without_end_is_cut_off_and_an_honest_job_is_watched_meanwhile(daemon: DaemonProcess) -> None:
    with simulated_ranks(daemon.endpoint, 1, {"job": "honest"}) as ranks, raw_dealer(daemon.endpoint) as attacker:
        send_steps(ranks, 1, 10)
        assert wait_until(lambda: daemon.step("honest") == 10, 10)
        before, highest, step = memory(daemon), 0, 10
        part = frame(bytes(65536), has_more=True)
        with contextlib.suppress(OSError):
            for number in range(32_768):  # 2 GB
                attacker.sendall(part)
                if number % 512 == 0:
                    highest, step = max(highest, memory(daemon)), step + 1
                    send_steps(ranks, step, step)

        assert wait_until(lambda: daemon.step("honest") == step, 10)
        refused = daemon.get("/api/v1/daemon")["num_refused"]
    assert refused == {"endless": 1}
    assert highest - before < 8 * GROWTH_BYTES, f"{(highest - before) / 2**20:.0f} MiB"
    assert "without the end of a message" in daemon.log.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("body", [b"x", bytes(60_000)], ids=["tiny", "large"])
def test_messages_that_come_faster_than_they_are_read_are_cut_off(daemon: DaemonProcess, body: bytes) -> None:
    with simulated_ranks(daemon.endpoint, 1, {"job": "honest"}) as ranks, raw_dealer(daemon.endpoint) as attacker:
        send_steps(ranks, 1, 10)
        assert wait_until(lambda: daemon.step("honest") == 10, 10)
        before, highest, step = memory(daemon), 0, 10
        whole = frame(body, has_more=False)
        many = whole * max(1, 60_000 // len(whole))
        with contextlib.suppress(OSError):
            for number in range(2000):
                attacker.sendall(many)
                if number % 20 == 0:
                    highest, step = max(highest, memory(daemon)), step + 1
                    send_steps(ranks, step, step)

        assert wait_until(lambda: daemon.step("honest") == step, 60)
        refused = daemon.get("/api/v1/daemon")["num_refused"]
    if len(body) == 1:  # large ones are read as fast as they come
        assert refused["flood"] == 1
    assert highest - before < 12 * GROWTH_BYTES, f"{(highest - before) / 2**20:.0f} MiB"


def ones(*shape: int) -> Any:
    return np.ones(shape, dtype=np.float32)


BAD_ARRAYS = (
    {"activation_std": ones(2, 0)},
    {"activation_std": ones(1), "activation_max": ones(2, 2)},
    {"activation_histogram": ones(2)},
    {"grad_norm": ones(2, 2), "weight_norm": ones(4)},
    {"grad_histogram": ones(4)},
)


def test_reports_of_any_shape_leave_the_daemon_and_its_jobs_running(daemon: DaemonProcess) -> None:
    hello = {"job": "attacked", "modules": MODULES}
    with (
        simulated_ranks(daemon.endpoint, 2, hello) as ranks,
        simulated_ranks(daemon.endpoint, 1, {"job": "good"}) as good,
    ):
        for step, arrays in enumerate(BAD_ARRAYS, 1):
            ranks[0].send(a_report(step, is_sampled=True, arrays=arrays))
            ranks[1].send(a_report(step, is_sampled=True, arrays={"grad_norm": ones(4), "activation_std": ones(2)}))
        send_steps(ranks, 10, 12)
        send_steps(good, 1, 12)

        assert wait_until(lambda: (daemon.step("attacked"), daemon.step("good")) == (12, 12), 20)
    about = daemon.get("/api/v1/daemon")
    assert sum(about["num_refused"].values()) == len(BAD_ARRAYS)
    assert about["num_errors"] == {}


# The watch, without sockets


class Watched:
    """A watch over a made-up memory; `closed` has what it closed."""

    def __init__(self) -> None:
        self.memory = 10**8
        self.closed: list[Connection] = []
        self.watch = FloodWatch(lambda known, _: self.closed.append(known), lambda: self.memory)
        self.watch.listen_on(1)
        self.watch.check(0.0)


def test_memory_that_grows_a_little_starts_no_search() -> None:
    watched = Watched()
    watched.memory += GROWTH_BYTES

    watched.watch.check(CHECK_SECONDS)
    assert not watched.watch.is_searching

    watched.memory += 1
    watched.watch.check(2 * CHECK_SECONDS)
    assert watched.watch.is_searching


def test_a_search_ends_and_the_next_needs_new_growth() -> None:
    watched = Watched()
    watched.memory += 2 * GROWTH_BYTES
    for tick in range(1, 40):
        watched.watch.check(tick * CHECK_SECONDS)
    assert watched.watch.is_searching, "as long as more comes than is read"

    for tick in range(40, 80):
        watched.watch.emptied()
        watched.watch.check(tick * CHECK_SECONDS)
    assert not watched.watch.is_searching
    assert watched.closed == []


def test_the_bytes_of_a_connection_are_those_that_the_kernel_received() -> None:

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client, server.accept()[0] as accepted:
            client.sendall(bytes(1000))
            assert len(accepted.recv(1000, socket.MSG_WAITALL)) == 1000
            (known,) = connections(port)

            assert (known.descriptor, known.received) == (accepted.fileno(), 1000)
            assert known.peer == f"127.0.0.1:{client.getsockname()[1]}"
    assert connections(port) == []
