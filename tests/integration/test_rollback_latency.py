"""How soon a rollback happens once it is decided: the steps from the one whose loss decided it to the boundary."""

from pathlib import Path

import pytest

from support.processes import running_daemon
from support.rollback_runs import ask, train

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

FEW_STEPS = 4
ONE_SECOND = 1.0


@pytest.mark.parametrize(
    ("step_seconds", "num_steps", "spike_at", "most"),
    [(0.5, 85, 45, FEW_STEPS), (0.05, 300, 90, round(ONE_SECOND / 0.05) + FEW_STEPS)],
    ids=["half a second", "fast"],
)
def test_a_rollback_is_few_steps_ahead_or_a_second_where_they_are_fast(
    tmp_path: Path, step_seconds: float, num_steps: int, spike_at: int, most: int
) -> None:
    with running_daemon(tmp_path, "--rollback", "auto") as daemon:
        options = ["--steps", str(num_steps), "--spike-at", str(spike_at), "--bad-steps", "8", "--snapshot-every", "10"]
        run = train(daemon, tmp_path, *options, "--rollback", "auto", "--step-seconds", str(step_seconds))

        assert run.returncode == 0, run.log
        decisions = ask(daemon, "decisions")["decisions"]
    (decision,) = [each for each in decisions if each["state"] == "committed"]
    assert decision["boundary"] - decision["step"] <= most, decision["explanation"]
