"""How a run ended, under real torchrun: cancelled, crashed with the rank that did it, or lost."""

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.processes import DaemonProcess, clean_environment, end, torchrun, wait_until

pytestmark = pytest.mark.slow

SCRIPT = """
import os, signal, sys, time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(1, 100_000):
    if step == 60 and dist.get_rank() == 1:
        exec(sys.argv[1])
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    time.sleep(0.05)
"""
CANCEL, KILL_ALL = "torchrun gets SIGTERM", "every rank gets SIGKILL"
CASES: dict[str, tuple[str, str, str]] = {
    "cancelled": ("pass", "cancelled", ""),
    "killed rank": ("os.kill(os.getpid(), signal.SIGKILL)", "crashed", "critical"),
    "exception": ("raise ValueError('bad shard')", "crashed", "critical"),
    "sys.exit(1)": ("sys.exit(1)", "crashed", "critical"),
    "lost": ("pass", "lost", "warning"),
}
"""What happens to rank 1 at step 60, the state of the job, and the severity of what is raised."""


def ranks_of(process: "subprocess.Popen[Any]") -> list[psutil.Process]:
    return [child for child in psutil.Process(process.pid).children() if "train.py" in " ".join(child.cmdline())]


@pytest.mark.parametrize("case", CASES)
def test_a_run_ends_with_the_state_that_it_had_and_names_the_rank(
    tmp_path: Path, daemon: DaemonProcess, case: str
) -> None:
    action, expected, severity = CASES[case]
    (tmp_path / "train.py").write_text(SCRIPT)
    process = subprocess.Popen(
        torchrun("caboose", str(tmp_path / "train.py"), action),
        env=clean_environment(CABOOSE_ENDPOINT=daemon.endpoint, CABOOSE_JOB="ending"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        if case in ("cancelled", "lost"):
            assert wait_until(lambda: daemon.step("ending") >= 20, 60)
            ranks = ranks_of(process)
            assert len(ranks) == 2
            if case == "cancelled":
                process.send_signal(signal.SIGTERM)
            else:
                for pid in (process.pid, *(rank.pid for rank in ranks)):
                    os.kill(pid, signal.SIGKILL)
        output, _ = process.communicate(timeout=120)
    finally:
        end(process)

    def detail() -> Any:
        return daemon.get("/api/v1/jobs/ending")

    if case != "lost":
        assert wait_until(lambda: detail()["state"] == expected, 15), detail()["state"]
        ending = wait_until(lambda: detail()["ending"], 90)
        assert ending, "the verdict comes when no rank runs any more"
        named = " by SIGTERM" if case == "cancelled" else ": rank 1 ("
        assert named in ending["how"], ending
    incidents = [i for i in daemon.get("/api/v1/jobs/ending/incidents")["incidents"] if i["rule"] == "rank_silent"]
    if not severity:
        assert not incidents
        assert {rank["state"] for rank in detail()["ranks"]} == {"terminated"}
        return
    silent = wait_until(
        lambda: [i for i in daemon.get("/api/v1/jobs/ending/incidents")["incidents"] if i["worst"] == severity], 60
    )
    assert silent, daemon.get("/api/v1/jobs/ending/incidents")
    if expected == "crashed":
        assert silent[0]["witness"]["ranks"] == [1]
        (other,) = (rank for rank in detail()["ranks"] if rank["rank"] == 0)
        assert other["state"] in ("terminated", "failed"), "terminated, or the connection broke before"
    if case == "exception":
        assert "train.py" in output.partition("Root Cause")[2], "torchrun's summary names the script"
