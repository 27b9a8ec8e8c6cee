"""A real daemon and peers that mean harm: it stays up, within its memory, and honest jobs are watched meanwhile."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from caboose_daemon.app.report_connections import GROWTH_BYTES, UNFINISHED_BYTES
from caboose_wire import Module
from support.processes import DaemonProcess, running_daemon, wait_until
from support.ranks import a_report, send_steps, simulated_ranks
from support.stopwatch import seconds_of
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


@contextlib.contextmanager
def highest_memory(daemon: DaemonProcess) -> Iterator[list[int]]:
    """The highest memory of a daemon during the block, above what it was before."""
    before = memory(daemon)
    found, stopping = [0], threading.Event()

    def look() -> None:
        while not stopping.wait(0.02):
            found[0] = max(found[0], memory(daemon) - before)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        stopping.set()
        thread.join()


def send_until_closed(attacker: socket.socket, part: bytes, num: int, pause: float = 0.0) -> None:
    with contextlib.suppress(OSError):
        for _ in range(num):
            attacker.sendall(part)
            time.sleep(pause)


EMPTY_FRAMES = b"\x01\x00" * 2**19
"""1 MiB on the wire, and 32 MiB in libzmq."""
LARGE_FRAMES = frame(bytes(65536), has_more=True) * 16


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num", "part"),
    [pytest.param(3, EMPTY_FRAMES, marks=pytest.mark.long), (40, LARGE_FRAMES)],
    ids=["of_empty_frames", "of_many_connections"],
)
def test_unfinished_messages_of_several_connections_are_cut_off_together(
    daemon: DaemonProcess, num: int, part: bytes
) -> None:
    with (
        simulated_ranks(daemon.endpoint, 1, {"job": "honest"}) as ranks,
        contextlib.ExitStack() as stack,
        highest_memory(daemon) as highest,
    ):
        send_steps(ranks, 1, 10)
        for _ in range(num):
            send_until_closed(stack.enter_context(raw_dealer(daemon.endpoint)), part, 31)
        assert wait_until(lambda: daemon.get("/api/v1/daemon")["num_refused"].get("endless", 0) > 0, 15)
        send_steps(ranks, 11, 20)
        assert wait_until(lambda: daemon.step("honest") == 20, 20)
    assert highest[0] < 6 * UNFINISHED_BYTES, f"{highest[0] / 2**20:.0f} MiB"
    assert set(daemon.get("/api/v1/daemon")["num_refused"]) == {"endless"}


@pytest.mark.long
@pytest.mark.slow
def test_a_message_that_grows_slowly_is_cut_off(daemon: DaemonProcess) -> None:
    with raw_dealer(daemon.endpoint) as attacker, highest_memory(daemon) as highest:
        send_until_closed(attacker, EMPTY_FRAMES[: 2**17], 1000, pause=0.1)  # 40 MiB a second in libzmq
        assert wait_until(lambda: daemon.get("/api/v1/daemon")["num_refused"] == {"endless": 1}, 5)
    assert highest[0] < 2 * UNFINISHED_BYTES, f"{highest[0] / 2**20:.0f} MiB"


@pytest.mark.slow
def test_a_message_of_a_million_frames_does_not_hold_the_loop(daemon: DaemonProcess) -> None:
    with simulated_ranks(daemon.endpoint, 1, {"job": "honest"}) as ranks, raw_dealer(daemon.endpoint) as attacker:
        attacker.sendall(EMPTY_FRAMES * 2 + b"\x00\x00")
        send_steps(ranks, 1, 10)
        waits: list[float] = []

        def is_refused() -> bool:
            waits.append(seconds_of(lambda: daemon.get("/api/v1/jobs")))
            return sum(daemon.get("/api/v1/daemon")["num_refused"].values()) == 1

        assert wait_until(is_refused, 20)
        assert wait_until(lambda: daemon.step("honest") == 10, 20)
    assert max(waits) < 1.8, "discarded in one go it takes 2 s on a quiet machine"


@pytest.mark.slow
def test_idle_connections_leave_descriptors_for_http_and_for_ranks(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon, contextlib.ExitStack() as stack:
        psutil.Process(daemon.process.pid).rlimit(psutil.RLIMIT_NOFILE, (400, 400))
        ranks = stack.enter_context(simulated_ranks(daemon.endpoint, 1, {"job": "honest"}))
        send_steps(ranks, 1, 3)
        assert wait_until(lambda: daemon.step("honest") == 3, 10)
        for _ in range(500):
            stack.enter_context(raw_dealer(daemon.endpoint))

        assert wait_until(lambda: psutil.Process(daemon.process.pid).num_fds() < 350, 10)
        assert daemon.get("/api/v1/daemon")["num_refused"]["limit"] >= 200
        late = stack.enter_context(simulated_ranks(daemon.endpoint, 1, {"job": "late"}))
        send_steps(late, 1, 5)
        send_steps(ranks, 4, 5)
        assert wait_until(lambda: (daemon.step("honest"), daemon.step("late")) == (5, 5), 20)


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
