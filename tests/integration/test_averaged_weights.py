"""Local SGD without code: replicas that differ on purpose between two averagings raise nothing, and that is stated."""

import json
import subprocess
from pathlib import Path

import pytest

from support.processes import DaemonProcess, clean_environment, torchrun, wait_until
from support.training import JOBS

pytestmark = pytest.mark.slow

STEPS = 60


@pytest.mark.parametrize("by", ["accelerate", "torch"])
def test_replicas_between_two_averagings_are_not_compared(daemon: DaemonProcess, tmp_path: Path, by: str) -> None:
    env = {"CABOOSE_ENDPOINT": daemon.endpoint, "CABOOSE_JOB": "averaged", "CABOOSE_OVERHEAD_BUDGET": "1"}
    command = torchrun("caboose", str(JOBS / "averaged.py"), str(tmp_path), by)
    done = subprocess.run(
        command, env=clean_environment(**env), cwd=tmp_path, capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert wait_until(lambda: daemon.get("/api/v1/jobs/averaged")["state"] == "ended", 10)
    detail = daemon.get("/api/v1/jobs/averaged")
    found = daemon.get("/api/v1/jobs/averaged/findings")["findings"]
    assert [(finding["rule"], finding["severity"]) for finding in found if finding["rule"] == "replica_desync"] == []
    assert "averaged" in detail["blind"]["fingerprint"]

    own = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    assert own[0] != own[1]
    rows = daemon.get("/api/v1/jobs/averaged/series", points=1000)["steps"]
    assert len(rows) == STEPS
    assert [row["grad_norm"] for row in rows[1:]] == [None] * (STEPS - 1), "no norm is that of all ranks"
