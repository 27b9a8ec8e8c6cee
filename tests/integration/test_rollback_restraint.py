"""A spike that heals is left alone; one that comes back and back spends the budget, and then the run is stopped."""

from pathlib import Path

import pytest

import caboose
from support.processes import running_daemon
from support.rollback_runs import JOB, ask, train

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

CONFIG = """
[rollback]
mode = "auto"
budget = 1
cooldown_steps = 5
quiet_steps = 20
on_exhausted = "stop"
"""


def test_a_spike_that_heals_by_itself_is_left_alone(tmp_path: Path) -> None:
    with running_daemon(tmp_path, "--rollback", "auto") as daemon:
        options = ["--steps", "120", "--spike-at", "65", "--bad-steps", "1", "--snapshot-every", "20"]
        run = train(daemon, tmp_path, *options, "--rollback", "auto", "--step-seconds", "0.08")

        assert run.returncode == 0, run.log
        decisions = ask(daemon, "decisions")
        incidents = ask(daemon, "incidents")["incidents"]
    assert any(member["rule"] == "loss_spike" for incident in incidents for member in incident["members"])
    assert decisions["decisions"] == []
    assert [rank["num_rollbacks"] for rank in run.ranks] == [0, 0]


def test_a_spike_that_comes_back_spends_the_budget_and_then_the_run_is_stopped(tmp_path: Path) -> None:
    (tmp_path / "caboose.toml").write_text(CONFIG)
    with running_daemon(tmp_path, "--config", "caboose.toml") as daemon:
        options = ["--steps", "600", "--spike-at", "100", "--bad-steps", "8", "--again-every", "90"]
        options += [
            "--rollback",
            "auto",
            "--rollback-cooldown",
            "5",
            "--snapshot-every",
            "10",
            "--step-seconds",
            "0.08",
        ]
        run = train(daemon, tmp_path, *options, "--checkpoint-dir", str(tmp_path / "kept"), "--checkpoint-at", "50")

        decisions = ask(daemon, "decisions")
        plan = caboose.resume_plan(tmp_path / "kept", job=JOB, endpoint=daemon.endpoint, world_size=2)
    assert run.returncode != 0
    assert "RunStopped: stopped after step" in run.log
    assert "resume from the checkpoint of step 50" in run.log
    told = [(decision["kind"], decision["state"]) for decision in reversed(decisions["decisions"])]
    assert told.count(("rollback", "committed")) == 1
    assert told[-1] == ("stop", "committed"), [decision["explanation"] for decision in decisions["decisions"]]
    assert "the budget of 1 rollbacks per day is spent" in decisions["exhausted"]
    assert plan.checkpoint == str(tmp_path / "kept" / "step-50"), plan.explain()
    assert (plan.step, plan.health, plan.lr_scale) == (50, "healthy", 0.5)
    assert plan.skips(190), "the batches of the spike that was not overcome"
    assert not plan.skips(60)
