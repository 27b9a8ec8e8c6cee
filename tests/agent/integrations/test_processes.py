"""Ranks that the script starts itself are watched without code: torch.multiprocessing's processes."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from caboose_wire import Bye
from support.collector import Collector
from support.processes import clean_environment

pytestmark = pytest.mark.slow

SCRIPT = """
import os
import sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

def train(rank, world, port):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", port
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(5):
        loss = model(torch.randn(4, 8)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if "--fails" in sys.argv and step == 3:
            raise RuntimeError("fails on purpose")
    dist.destroy_process_group()

def idle(number):
    assert torch.ones(2).sum() == 2

if __name__ == "__main__":
    if "--idle" in sys.argv:
        mp.spawn(idle, nprocs=2)
    elif "--method" in sys.argv:
        mp.start_processes(train, args=(2, sys.argv[1]), nprocs=2, start_method=sys.argv[-1])
    else:
        mp.spawn(train, args=(2, sys.argv[1]), nprocs=2)
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run(
    directory: Path, listening: Collector, *arguments: str, watched: bool = True
) -> "subprocess.CompletedProcess[str]":
    (directory / "train.py").write_text(SCRIPT)
    launcher = ["-m", "caboose"] if watched else []
    command = [sys.executable, *launcher, "train.py", str(free_port()), *arguments]
    env = clean_environment(CABOOSE_ENDPOINT=listening.endpoint, CABOOSE_QUIET="1", OMP_NUM_THREADS="1")
    return subprocess.run(command, cwd=directory, env=env, capture_output=True, text=True, timeout=280, check=False)


def check_ranks(listening: Collector) -> None:
    assert sorted((hello.rank, hello.world, hello.wrapper) for hello in listening.hellos) == [
        (rank, 2, "DistributedDataParallel") for rank in (0, 1)
    ]
    assert len({(hello.job, hello.launch, hello.proof) for hello in listening.hellos}) == 1
    assert all(hello.proof and hello.job.startswith("train@") for hello in listening.hellos)


@pytest.mark.parametrize("arguments", [(), ("--method", "fork")])
def test_every_process_is_a_rank_of_one_job(tmp_path: Path, listening: Collector, arguments: tuple[str, ...]) -> None:
    done = run(tmp_path, listening, *arguments)

    assert (done.returncode, done.stderr) == (0, "")
    byes = listening.wait_for(Bye, 2)
    check_ranks(listening)
    assert sorted(report.step for report in listening.reports) == sorted([1, 2, 3, 4, 5] * 2)
    assert [bye.error for bye in byes] == ["", ""]


def test_a_rank_that_fails_reports_its_error_and_the_traceback_is_that_of_python(
    tmp_path: Path, listening: Collector
) -> None:
    bare = run(tmp_path, listening, "--fails", watched=False)
    done = run(tmp_path, listening, "--fails")

    assert done.returncode == bare.returncode == 1
    shown, expected = (text[text.index("-- Process") :].splitlines() for text in (done.stderr, bare.stderr))
    assert shown[1:] == expected[1:]
    assert any("fails on purpose" in bye.error for bye in listening.wait_for(Bye))
    check_ranks(listening)


def test_processes_that_train_nothing_are_not_reported(tmp_path: Path, listening: Collector) -> None:
    done = run(tmp_path, listening, "--idle")

    assert (done.returncode, done.stderr) == (0, "")
    assert not listening.hellos


WORKER = """
import os
import torch
from caboose.integrations.processes import run_worker

def train(fails):
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    if fails:
        raise RuntimeError("fails on purpose")

variables = {"CABOOSE_JOB": "tried"}
try:
    run_worker(train, variables, ("another host", os.getpid()), (True,), {})
except RuntimeError:
    pass
run_worker(train, variables, ("another host", os.getpid()), (False,), {})
"""


def test_a_worker_that_is_used_again_after_a_failure_reports_how_each_function_ended(listening: Collector) -> None:
    env = clean_environment(CABOOSE_ENDPOINT=listening.endpoint, CABOOSE_QUIET="1")
    subprocess.run([sys.executable, "-c", WORKER], env=env, check=True, timeout=100)

    byes = listening.wait_for(Bye, 2)
    assert [bye.error for bye in byes] == ["RuntimeError: fails on purpose", ""]
