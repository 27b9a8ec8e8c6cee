"""What is written or copied of a run is byte for byte what it would be without the agent."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.collector import collector
from support.processes import clean_environment
from support.training import JOBS

pytestmark = pytest.mark.slow

KINDS = ["plain", "sequential", "self-copying", "called", "hooked", "distributed", "compiled", "no-code"]


def test_models_optimizers_and_schedulers_are_written_and_copied_as_without_the_agent(tmp_path: Path) -> None:
    with collector() as listening:
        done = subprocess.run(
            [sys.executable, str(JOBS / "pickled.py"), listening.endpoint, str(tmp_path), *KINDS],
            env=clean_environment(PYTHONWARNINGS="ignore"),  # torch's own, about scripting
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert done.returncode == 0, done.stderr
    runs = [json.loads(line) for line in done.stdout.splitlines()]
    assert [run["kind"] for run in runs] == KINDS
    for run in runs:
        bare, watched = run["bare"], run["watched"]
        for phase, written in bare["written"].items():
            assert watched["written"][phase] == written, f"{run['kind']}, {phase}"
        assert watched["facts"] == bare["facts"]
        assert all(watched["facts"].values()), run["kind"]
    assert len(runs[0]["watched"]["facts"]) == 5, "it is loaded, scripted and traced, too"
    assert {hello.job for hello in listening.hellos} >= {"pickled"}
    assert len(listening.hellos) >= len(KINDS), "each was watched"
