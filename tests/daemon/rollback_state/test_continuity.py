"""After a rollback the loss must go on where it was when the state was taken."""

import numpy as np
import pytest

from caboose_daemon.rollback_state.continuity import FIRST_STEPS, Continuity, level_at, update
from caboose_daemon.rollback_state.loss_level import Losses, LossLevel
from caboose_daemon.steps.columns import StepSummary

BEFORE = LossLevel(2.0, 0.05, 64)


def a_check(**changes: object) -> Continuity:
    fields: dict[str, object] = {"attempt": 2, "since": 150, "origin": 100, "decision": 3, "before": BEFORE}
    return Continuity(**{**fields, **changes})


def losses(*values: float) -> Losses:
    array = np.array(values, dtype=np.float64)
    return Losses(np.arange(151, 151 + len(values)), array, np.isnan(array))


def test_nothing_is_said_before_enough_losses_were_seen() -> None:
    assert update(a_check(), losses(*[9.0] * (FIRST_STEPS - 1))).state == "checking"
    assert update(a_check(), losses(*[9.0] * FIRST_STEPS)).state == "broken"


@pytest.mark.parametrize(("loss", "state"), [(2.0, "ok"), (2.049, "ok"), (2.08, "broken"), (1.0, "ok")])
def test_the_loss_goes_on_within_the_noise_it_had(loss: float, state: str) -> None:
    check = update(a_check(), losses(*[loss] * FIRST_STEPS))

    assert check.state == state
    assert f"{loss:.4g} against 2 before," in check.text


def test_a_little_above_is_fine_where_the_trouble_was_far_worse() -> None:
    assert update(a_check(excess=1.2), losses(*[2.11] * FIRST_STEPS)).state == "ok"
    assert update(a_check(excess=1.2), losses(*[2.13] * FIRST_STEPS)).state == "broken"


def test_no_height_of_the_trouble_excuses_a_loss_that_is_off_its_level() -> None:
    giant = a_check(excess=4e3, before=LossLevel(0.005, 1e-4, 64))

    assert update(giant, losses(*[0.0052] * FIRST_STEPS)).state == "ok"
    broken = update(giant, losses(*[0.006] * FIRST_STEPS))
    assert broken.state == "broken"
    assert "tolerance 0.0003" in broken.text


def test_losses_that_are_not_finite_break_it_at_once() -> None:
    assert update(a_check(), losses(2.0, *[float("nan")] * 3)).state == "broken"
    assert update(a_check(), losses(2.0, *[float("nan")] * 2)).state == "checking"


def test_what_is_broken_may_still_settle_and_what_is_ok_is_settled() -> None:
    broken = update(a_check(), losses(*[9.0] * FIRST_STEPS))

    settled = update(broken, losses(*[9.0] * FIRST_STEPS, *[2.0] * FIRST_STEPS))

    assert settled.state == "ok"
    assert update(settled, losses(*[9.0] * 40)) is settled


def test_it_says_which_way_the_run_came_there() -> None:
    assert update(a_check(), losses(*[2.0] * 20)).text.startswith("rolled back to step 100: loss continues")
    assert update(a_check(decision=0), losses(*[2.0] * 20)).text.startswith("resumed at step 100: loss continues")


def test_without_losses_from_before_nothing_can_be_said() -> None:
    assert update(a_check(before=None), losses(*[2.0] * 20)).state == "unknown"


def test_the_level_is_that_just_before_the_state_was_taken_by_whoever_took_the_step_last() -> None:
    def at(attempt: int, step: int, loss: float) -> StepSummary:
        return StepSummary(attempt, step, 0.0, loss, None, None, None, None, None, None, None, 1)

    recent = [at(1, step, 5.0) for step in range(1, 60)]
    recent += [at(2, step, 3.0) for step in range(30, 50)]
    recent += [at(2, step, 9.0) for step in range(50, 60)]
    recent += [at(3, step, 7.0) for step in range(49, 70)]

    known = level_at(recent, 49, 3)

    assert known is not None
    assert known.level == 3.0
    assert level_at(recent, 5, 3) is None
