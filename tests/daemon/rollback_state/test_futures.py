"""What a raised loss may do next: which futures the heights so far leave, and what waiting loses in them."""

import math

import numpy as np
import pytest

from caboose_daemon.rollback_state.future_kinds import Raised
from caboose_daemon.rollback_state.futures import Futures, foresee, horizon
from caboose_daemon.rollback_state.progress import Progress
from caboose_daemon.rollback_state.run_start import START_LOSSES, RunStart

LEVEL, NOISE, PROGRESS = 2.0, 0.02, 2.0


def raised(heights: np.ndarray, *, seed: int = 0, ahead: float = 1000.0, progress: float = PROGRESS) -> Raised:
    """Heights above the level, with the scatter of single steps."""
    scattered = heights + NOISE * np.random.default_rng(seed).standard_normal(len(heights))
    steps = np.arange(500, 500 + len(heights), dtype=np.int64)
    return Raised(steps, scattered, LEVEL, NOISE, Progress.known(progress), len(heights), ahead)


def foreseen(heights: np.ndarray, **settings: float) -> Futures:
    return foresee(raised(np.asarray(heights, dtype=np.float64), **settings))  # type: ignore[arg-type]


@pytest.mark.parametrize("duration", [4.0, 9.3, 25.0])
@pytest.mark.parametrize("height", [0.7, 2.0, 20.0])
def test_what_a_fall_loses_is_the_sum_of_its_shares(height: float, duration: float) -> None:
    """No grid of durations may make a clean fall look like one that leaves a residue."""
    ahead = np.arange(1000)
    whole = height * np.exp(-ahead / duration)
    num = int(2 * duration) + 8

    found = foreseen(whole[:num])

    assert found.likely == pytest.approx(np.minimum(1.0, whole[num:] / PROGRESS).sum(), rel=0.4, abs=2.0)


def test_a_height_above_the_start_loses_whole_steps_however_fast_it_falls() -> None:
    found = foreseen(1.4e6 * 0.96 ** np.arange(12), progress=0.7)

    until_the_start = math.log(1.4e6 * 0.96**12 / 0.7) / 0.04
    assert found.quantile(0.05) > 0.7 * until_the_start


def test_a_fall_that_flattens_above_the_level_loses_its_residue_to_the_end() -> None:
    ahead = np.arange(60)

    found = foreseen(0.6 + 1.4 * np.exp(-ahead / 10))

    assert found.quantile(0.05) > 100.0
    assert found.likely == pytest.approx(0.3 * 1000, rel=0.35)


def test_the_more_steps_are_seen_the_narrower_the_band() -> None:
    fall = 2.0 * np.exp(-np.arange(60) / 20)

    widths = [foreseen(fall[:num]).quantile(0.95) - foreseen(fall[:num]).quantile(0.05) for num in (6, 20, 60)]

    assert widths == sorted(widths, reverse=True)


def test_each_step_that_a_height_stays_makes_it_less_likely_to_pass() -> None:
    found = [foreseen(np.full(num, 1.0)) for num in (5, 20, 80)]

    assert found[0].likely < found[2].likely
    assert found[0].quantile(0.3) < 10.0 < found[2].quantile(0.3)


def test_a_rising_height_loses_more_than_one_that_stays() -> None:
    rises, stays = foreseen(0.5 + 0.03 * np.arange(20)), foreseen(np.full(20, 0.8))

    assert rises.likely > stays.likely
    assert rises.quantile(0.95) <= 1000.0


def test_an_odd_batch_does_not_change_what_a_fall_is_fitted_to() -> None:
    fall = 2.0 * np.exp(-np.arange(30) / 10)
    odd = fall.copy()
    odd[20] += 1.0

    assert foreseen(odd).likely == pytest.approx(foreseen(fall).likely, rel=0.5, abs=2.0)


def test_deciding_later_is_better_while_it_may_soon_be_clear_and_not_when_it_is() -> None:
    unclear, clear = foreseen(np.full(6, 1.0)), foreseen(np.full(80, 1.0))

    far, after = unclear.if_decided_later(3.0, 100.0)
    near, _ = clear.if_decided_later(40.0, 100.0)

    assert far < 100.0
    assert after > 1.0
    assert near > far, "the longer it has stayed, the less there is to wait for"


def test_what_a_disturbance_that_goes_on_will_lose_is_lost_with_a_rollback_too() -> None:
    stays, falls = foreseen(np.full(8, 1.0)), foreseen(2.0 * np.exp(-np.arange(20) / 6.0))

    assert stays.goes_on > 1.0
    assert falls.goes_on < 0.1, "what falls from its peak is over, and left damage"
    assert (stays.ongoing[:, 0] >= stays.ongoing[:, -1]).all()


def test_a_loss_is_back_the_likelier_the_longer_it_is_waited_for() -> None:
    found = foreseen(2.0 * np.exp(-np.arange(10) / 8.0))

    chances = [found.is_back(steps, 0.2) for steps in (0.0, 5.5, 20.0, 1e6)]

    assert chances == sorted(chances)
    assert chances[1] < 0.5 < chances[2], "2 * exp(-t / 8) is at 0.2 after 18 steps, of which 9 are past"
    assert found.is_back(0.0, 5.0) == pytest.approx(1.0)


def test_a_disturbance_that_rises_leaves_what_it_did_and_one_that_is_flat_may_leave_nothing() -> None:
    flat, rising = foreseen(np.full(12, 1.0)), foreseen(0.4 + 0.1 * np.arange(12))

    assert flat.is_back(10.0, 0.1) > 0.05
    assert rising.is_back(10.0, 0.1) < 0.01


def test_a_rollback_that_is_cheap_is_not_put_off() -> None:
    later, _ = foreseen(np.full(20, 1.9)).if_decided_later(19.0, 25.0)

    assert later > 25.0


def test_the_rest_of_a_run_is_expected_to_be_twice_what_it_has_lasted_unless_its_length_is_known() -> None:
    assert horizon(5000, 5000) == 10_000.0
    assert horizon(5000, 5000, 6000.0) == 1000.0
    assert horizon(50_000, 300) == 600.0, "as far as twice the losses that are known"
    assert horizon(7000, 7000, 6000.0) == 14_000.0, "a length that has passed was none"
    assert horizon(3, 3) == 100.0


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
