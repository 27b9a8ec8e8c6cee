"""How soon a rollback happens once it is decided: the steps from the one whose loss decided it to the boundary."""

from pathlib import Path

import pytest

from support.processes import running_daemon
from support.rollback_runs import ask, train

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

FEW_STEPS = 4


def test_where_steps_take_half_a_second_a_rollback_is_at_most_four_of_them_ahead(tmp_path: Path) -> None:
    with running_daemon(tmp_path, "--rollback", "auto") as daemon:
        options = ["--steps", "85", "--spike-at", "45", "--bad-steps", "8", "--snapshot-every", "10"]
        run = train(daemon, tmp_path, *options, "--rollback", "auto", "--step-seconds", "0.5")

        assert run.returncode == 0, run.log
        decisions = ask(daemon, "decisions")["decisions"]
    (decision,) = [each for each in decisions if each["state"] == "committed"]
    assert decision["boundary"] - decision["step"] <= FEW_STEPS, decision["explanation"]
