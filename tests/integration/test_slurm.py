"""deploy/slurm/train.sbatch under a real Slurm of one node: two ranks, a real daemon, its end and that of scancel."""

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.processes import caboose_command, clean_environment, wait_until
from support.slurm import Slurm, running_slurm, why_not

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "deploy" / "slurm" / "train.sbatch"
TRAINING = """
import sys, time, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(int(sys.argv[1])):
    optimizer.zero_grad()
    x = torch.randn(16, 8)
    loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
    loss.backward()
    optimizer.step()
    time.sleep(0.02)
dist.destroy_process_group()
sys.exit(int(sys.argv[2]))
"""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with running_slurm(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


def submit(slurm: Slurm, directory: Path, *arguments: str) -> str:
    """The number of a job that trains with two ranks on one node."""
    bin_ = directory / "bin"
    bin_.mkdir()
    for name, command in (
        ("caboose", f'{sys.executable} -m caboose_daemon "${{@//0.0.0.0/127.0.0.1}}"'),  # only loopback in a test
        ("torchrun", f'{sys.executable} -m torch.distributed.run "$@"'),
    ):
        path = bin_ / name
        path.write_text(f"#!/bin/bash\nexec {command}\n")
        path.chmod(0o755)
    (directory / "train.py").write_text(TRAINING)
    variables = {"PATH": f"{bin_}:{slurm.environment['PATH']}", "CABOOSE_DIR": str(directory / "state"), "GPUS": "2"}
    text = SCRIPT.read_text().replace("#SBATCH --gpus-per-node=8\n", "")  # this node has none
    script = directory / "train.sbatch"
    script.write_text(text)
    command = ["sbatch", "--parsable", "--nodes=1", "--cpus-per-task=2", f"--output={directory}/out.log"]
    return slurm.run(*command, str(script), "train.py", *arguments, env=variables, cwd=directory).strip()


def of_journal(directory: Path) -> dict[str, Any]:
    """The only job of the journal."""
    command = [*caboose_command("jobs", "--json", "--journal"), str(directory / "state")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=clean_environment())
    (job,) = json.loads(done.stdout)["jobs"]
    return dict(job)


def output(directory: Path) -> str:
    return (directory / "out.log").read_text()


def test_a_job_is_watched_and_its_daemon_ends_with_it(slurm: Slurm, tmp_path: Path) -> None:
    number = submit(slurm, tmp_path, "60", "0")

    ended = slurm.wait(number, "COMPLETED", "FAILED")

    assert (ended["JobState"], ended["ExitCode"]) == ("COMPLETED", "0:0"), output(tmp_path)
    assert "caboose: page and metrics at http://localhost:" in output(tmp_path)
    job = of_journal(tmp_path)
    assert (job["state"], job["world"], job["step"], job["health"]) == ("ended", 2, 60, "ok")
    assert wait_until(lambda: not still_runs(tmp_path), 20)


def test_the_exit_code_of_the_training_is_that_of_the_job(slurm: Slurm, tmp_path: Path) -> None:
    number = submit(slurm, tmp_path, "20", "3")

    ended = slurm.wait(number, "COMPLETED", "FAILED", timeout=120)

    assert ended["JobState"] == "FAILED", output(tmp_path)
    assert ended["ExitCode"] != "0:0"
    assert of_journal(tmp_path)["state"] == "crashed"


def test_a_cancelled_job_is_cancelled_and_leaves_nothing_running(slurm: Slurm, tmp_path: Path) -> None:
    number = submit(slurm, tmp_path, "100000", "0")
    assert wait_until(lambda: (tmp_path / "state" / "ready.json").exists(), 60), output(tmp_path)
    url = json.loads((tmp_path / "state" / "ready.json").read_text())["url"]
    shown = [*caboose_command("jobs", "--json", "--daemon"), url]
    environment = clean_environment()

    def step() -> int:
        done = subprocess.run(shown, capture_output=True, text=True, env=environment, check=False)
        rows = json.loads(done.stdout)["jobs"] if done.returncode == 0 else []
        return max((int(row["step"]) for row in rows), default=0)

    assert wait_until(lambda: step() > 10, 60), output(tmp_path)

    slurm.run("scancel", "--full", number)

    slurm.wait(number, "CANCELLED", timeout=60)
    assert wait_until(lambda: not still_runs(tmp_path), 60)
    assert of_journal(tmp_path)["step"] > 10


def still_runs(directory: Path) -> bool:
    """Whether a process of this test's job runs."""
    found = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    return any(shlex.quote(str(directory / "state")) in line for line in found.splitlines())
