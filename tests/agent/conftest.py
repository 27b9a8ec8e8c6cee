"""Fixtures for tests of the agent: a listening end of the wire, and monitors that are closed again."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore

import caboose
from caboose.report.daemon_log import daemon_log
from support.collector import Collector, collector

LAUNCHER_VARIABLES = (
    "RANK",
    "WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "SLURM_JOB_ID",
    "SLURM_PROCID",
    "CABOOSE_JOB",
    "CABOOSE_DISABLED",
    "CABOOSE_ENDPOINT",
)


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No launcher, no settings, but what a test sets itself."""
    for name in LAUNCHER_VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def unused_daemon_log() -> None:
    """The limit of lines is one process's, and a process runs many tests."""
    daemon_log.__init__()  # type: ignore[misc]  # the modules that log hold this object


@pytest.fixture
def listening() -> Iterator[Collector]:
    with collector() as made:
        yield made


@pytest.fixture
def attach() -> Iterator[Callable[..., caboose.Monitor]]:
    """`caboose.attach`, with every monitor closed afterwards."""
    made: list[caboose.Monitor] = []

    def attach_and_remember(*args: Any, **kwargs: Any) -> caboose.Monitor:
        monitor = caboose.attach(*args, **{"job": "train", **kwargs})
        made.append(monitor)
        return monitor

    yield attach_and_remember
    for monitor in made:
        monitor.close()


@pytest.fixture
def process_group() -> Iterator[None]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
