"""Memory stays bounded: a long run in fast forward, through a real daemon and through a real agent."""

import gc
import math
import random
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch

import caboose
from caboose_wire import Bye
from support.processes import DaemonProcess, running_daemon, wait_until
from support.ranks import a_report, simulated_ranks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
GROWTH = 1.02
BAD_EVERY = 9000


@pytest.fixture
def num_steps(request: pytest.FixtureRequest) -> int:
    """Sixty thousand steps, or a million with --soak: what a daemon keeps of a job is full after thirty thousand."""
    return 1_000_000 if request.config.getoption("--soak") else 60_000


@pytest.fixture
def lean_daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    with running_daemon(tmp_path / "daemon") as process:
        yield process


def wait_for_step(daemon: DaemonProcess, step: int) -> None:
    """Waits until the daemon has taken everything up to a step."""
    assert wait_until(lambda: daemon.get("/api/v1/jobs/train")["step"] >= step, 600, every=0.05)


def test_the_daemons_size_does_not_grow_with_the_run(lean_daemon: DaemonProcess, num_steps: int) -> None:
    draw = random.Random(0)
    began = time.monotonic()
    process = psutil.Process(lean_daemon.process.pid)
    sizes: list[int] = []
    with simulated_ranks(lean_daemon.endpoint, world=2) as ranks:
        for step in range(1, num_steps + 1):
            loss = 2.0 + 3.0 * math.exp(-step / 5000) + draw.gauss(0, 0.05)
            if step % BAD_EVERY == 0:
                loss = math.nan  # a finding each time; a spike is not reported once the run is known to recover from it
            report = a_report(step=step, loss=loss)
            for rank in ranks:
                rank.send(report)
            if step % (num_steps // 100) == 0:
                wait_for_step(lean_daemon, step)  # what waits to be read is no part of what is kept
                sizes.append(process.memory_info().rss)
        for rank in ranks:
            rank.send(
                Bye(
                    step=num_steps,
                )
            )
        assert wait_until(lambda: lean_daemon.get("/api/v1/jobs/train")["state"] == "ended", 30)
    seconds = time.monotonic() - began
    # Rows that wait for a commit and pages that wait for reuse come and go, some 6 MiB: the least is what is kept.
    half, full = min(sizes[45:60]), min(sizes[85:])
    print(f"\n{num_steps} steps in {seconds:.0f} s; resident {half / 2**20:.1f} -> {full / 2**20:.1f} MiB")
    detail = lean_daemon.get("/api/v1/jobs/train")
    assert detail["num_steps"] == num_steps
    assert all(rank["num_missed"] == 0 for rank in detail["ranks"])
    assert len(lean_daemon.get("/api/v1/jobs/train/findings")["findings"]) >= num_steps // BAD_EVERY
    assert full < half * GROWTH


def test_the_agents_size_does_not_grow_with_a_daemon_that_is_not_there(num_steps: int) -> None:
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    model(torch.randn(2, 4)).sum().backward()
    loss = torch.tensor(1.0)
    process = psutil.Process()
    half = 0
    with caboose.attach(model, optimizer, job="memory", endpoint="tcp://127.0.0.1:9") as monitor:
        for step in range(1, num_steps + 1):
            optimizer.step()
            monitor.step(loss)
            if step == num_steps // 2:
                gc.collect()
                half = process.memory_info().rss
        gc.collect()
        full = process.memory_info().rss
        assert monitor._session.sender is not None
        assert monitor._session.sender.num_dropped > 0
    print(f"\nresident {half / 2**20:.1f} -> {full / 2**20:.1f} MiB")
    assert full < half * GROWTH
