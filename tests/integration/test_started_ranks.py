"""Ranks that a script starts itself, under `python -m caboose`: they are watched, and named as the script."""

import subprocess
import sys
from pathlib import Path

import pytest

from support.processes import DaemonProcess, clean_environment, wait_until

pytestmark = pytest.mark.slow

SCRIPT = """
import multiprocessing, os, sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

def work(rank, method, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1, 21):
        if rank == 1 and step == 10 and method == "failing":
            raise ValueError("bad shard")
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
    dist.destroy_process_group()

if __name__ == "__main__":
    method, store = sys.argv[1:]
    if method == "fork":
        ranks = [multiprocessing.get_context("fork").Process(target=work, args=(r, method, store)) for r in (0, 1)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
        sys.exit(sum(rank.exitcode for rank in ranks))
    mp.spawn(work, args=(method, store), nprocs=2)
"""


@pytest.mark.parametrize(
    ("method", "status", "state"), [("spawn", 0, "ended"), ("fork", 0, "ended"), ("failing", 1, "crashed")]
)
def test_ranks_that_the_script_starts_are_watched(
    tmp_path: Path, daemon: DaemonProcess, method: str, status: int, state: str
) -> None:
    (tmp_path / "exp").mkdir()
    (tmp_path / "exp" / "train.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-m", "caboose", "train.py", method, str(tmp_path / "store")],
        cwd=tmp_path / "exp",
        env=clean_environment(CABOOSE_ENDPOINT=daemon.endpoint),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == status, done.stderr
    assert "nothing was watched" not in done.stderr

    assert wait_until(lambda: daemon.get("/api/v1/jobs/train@exp")["state"] == state, 15)
    detail = daemon.get("/api/v1/jobs/train@exp")
    assert len(detail["ranks"]) == 2
    if state == "ended":
        assert detail["step"] == 20
    else:
        (failed,) = (rank for rank in detail["ranks"] if rank["rank"] == 1)
        assert failed["error"] == "ValueError: bad shard"
