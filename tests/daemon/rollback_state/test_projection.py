"""What waiting still loses: shares of the run's progress, summed until the loss is back."""

import math

import numpy as np
import pytest

from caboose_daemon.rollback_state.projection import Height, horizon, project, steps_back
from caboose_daemon.rollback_state.run_start import START_LOSSES, RunStart


def a_height(**changes: float) -> Height:
    fields = {"excess": 1.0, "progress": 2.0, "noise": 0.01, "age": 10, "horizon": 1000.0}
    return Height(**{**fields, **changes})


@pytest.mark.parametrize("excess", [0.5, 1.0, 2.0, 50.0, 1e6])
@pytest.mark.parametrize("rate", [0.005, 0.04, 0.3])
def test_what_a_falling_height_loses_is_the_sum_of_its_shares(excess: float, rate: float) -> None:
    height = a_height(excess=excess, rate=rate, error=0.1 * rate)

    heights = excess * np.exp(-rate * np.arange(1000))
    summed = np.minimum(1.0, heights / 2.0)[heights > 0.01].sum()

    found = project(height)
    assert found.likely == pytest.approx(summed, rel=0.05, abs=1.0)
    assert found.least < found.likely < found.most or found.likely == found.most == 1000.0


def test_a_height_above_the_start_loses_whole_steps_however_fast_it_falls() -> None:
    found = project(a_height(excess=1.4e6, progress=0.7, noise=1e-4, rate=0.04, error=1e-4))

    until_the_start = math.log(1.4e6 / 0.7) / 0.04
    assert found.likely == pytest.approx(until_the_start + 1 / 0.04, rel=0.01)
    assert found.least > 0.98 * found.likely


def test_the_less_certain_the_rate_the_wider_the_band() -> None:
    sure, unsure = (project(a_height(rate=0.04, error=error)) for error in (0.001, 0.015))

    assert sure.likely == unsure.likely
    assert unsure.least < sure.least < sure.most < unsure.most


def test_a_height_that_stays_may_pass_and_each_step_makes_that_less_likely() -> None:
    found = [project(a_height(age=age)) for age in (5, 20, 80)]

    assert [f.hope for f in found] == sorted((f.hope for f in found), reverse=True)
    assert [f.likely for f in found] == sorted(f.likely for f in found)
    assert all(f.least == 0.0 and f.most == pytest.approx(500.0) for f in found)


def test_a_rising_height_is_less_likely_to_pass_and_loses_more() -> None:
    stays, rises = project(a_height()), project(a_height(rise=0.05))

    assert rises.hope < stays.hope
    assert rises.likely > stays.likely
    assert rises.most <= 1000.0


def test_a_run_is_expected_to_last_as_long_again_unless_its_length_is_known() -> None:
    assert horizon(5000) == 5000.0
    assert horizon(5000, 6000.0) == 1000.0
    assert horizon(7000, 6000.0) == 7000.0, "a length that has passed was none"
    assert horizon(3) == 100.0


def test_the_steps_back_follow_from_the_rate() -> None:
    assert steps_back(a_height(rate=0.1)) == pytest.approx(math.log(100) / 0.1)
    assert math.isinf(steps_back(a_height()))


def test_one_odd_batch_does_not_set_the_start_and_chance_replaces_a_higher_one() -> None:
    start = RunStart()
    assert start.loss() is None
    for loss in (900.0, 4.2, math.nan, 4.1, 4.0, 4.3, *[1.0] * 20):
        start.observe(loss)

    assert start.loss() == 4.2
    assert start.loss(num_classes=10) == pytest.approx(math.log(10))
    assert start.loss(num_classes=1000) == 4.2

    again = RunStart()
    again.restore(start.loss())
    again.observe(1.0)
    assert again.loss() == 4.2
    assert START_LOSSES == 5
