"""How soon a rollback happens once it is decided: the steps from the one whose loss decided it to the boundary."""

from pathlib import Path

import pytest

from support.processes import running_daemon
from support.rollback_runs import ask, train

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

FEW_STEPS, SECONDS = 4, 1.0


@pytest.mark.parametrize(("step_seconds", "steps", "spike_at"), [(0.5, 85, 45), (0.05, 300, 200)])
def test_a_rollback_is_at_most_four_steps_ahead_or_a_second_and_four_steps_where_steps_are_fast(
    step_seconds: float, steps: int, spike_at: int, tmp_path: Path
) -> None:
    with running_daemon(tmp_path, "--rollback", "auto") as daemon:
        options = ["--steps", str(steps), "--spike-at", str(spike_at), "--bad-steps", "8", "--snapshot-every", "10"]
        run = train(daemon, tmp_path, *options, "--rollback", "auto", "--step-seconds", str(step_seconds))

        assert run.returncode == 0, run.log
        decisions = ask(daemon, "decisions")["decisions"]
    (decision,) = [each for each in decisions if each["state"] == "committed"]
    fast = 0.0 if step_seconds >= 0.5 else SECONDS / step_seconds
    assert decision["boundary"] - decision["step"] <= FEW_STEPS + fast, decision["explanation"]
