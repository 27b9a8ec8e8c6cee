"""Two models with an optimizer each on several ranks: their losses, norms and rates are right, and nothing changes."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.processes import DaemonProcess, clean_environment, end, torchrun, wait_until
from support.training import JOBS, finish, training

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(500)]

STEPS = 12
SECONDS = 200
SCRIPT = JOBS / "parted.py"


def no_code(out: Path, kind: str, env: dict[str, str]) -> list[Any]:
    """As `training` and `finish`, under `python -m caboose`."""
    out.mkdir()
    with (out / "job.log").open("wb") as log:
        process = subprocess.Popen(
            torchrun("caboose", str(SCRIPT), str(out), kind, str(STEPS)),
            env=clean_environment(**env),
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            return finish(process, out, SECONDS)
        finally:
            end(process, patience=10)


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
@pytest.mark.parametrize("how", ["attach", "no code"])
def test_each_part_has_its_own_loss_norm_and_rate(daemon: DaemonProcess, tmp_path: Path, kind: str, how: str) -> None:
    env = {"CABOOSE_ENDPOINT": daemon.endpoint, "CABOOSE_JOB": "pair", "CABOOSE_OVERHEAD_BUDGET": "1"}
    with training(tmp_path / "bare", kind, str(STEPS), env=env, script=SCRIPT) as process:
        bare = finish(process, tmp_path / "bare", SECONDS)
    if how == "attach":
        with training(tmp_path / "watched", kind, str(STEPS), "attach", env=env, script=SCRIPT) as process:
            watched = finish(process, tmp_path / "watched", SECONDS)
    else:
        watched = no_code(tmp_path / "watched", kind, env)
    assert watched == bare, "weights and numbers are those of the bare run"
    assert wait_until(lambda: daemon.get("/api/v1/jobs/pair")["state"] == "ended", 15)
    detail = daemon.get("/api/v1/jobs/pair")
    assert detail["world"] == 2
    rows = daemon.get("/api/v1/jobs/pair/series", points=1000)["steps"]
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    for name, numbers in bare[0]["parts"].items():
        seen = [row["parts"][name] for row in rows]
        first = 0 if how == "attach" else 1  # without code, the first step attaches
        losses, norms, rates = zip(*numbers, strict=True)
        assert [each["loss"] for each in seen] == pytest.approx(losses, rel=1e-5), json.dumps(seen[0])
        assert [each["grad_norm"] for each in seen[first:]] == pytest.approx(norms[first:], rel=1e-5)
        assert [each["lr"] for each in seen] == pytest.approx(rates, rel=1e-6)
    raised = {finding["rule"] for finding in daemon.get("/api/v1/jobs/pair/findings")["findings"]}
    assert raised <= {"monitor_blind"}, raised
