"""The baseline follows a series, resists outliers, and never grows."""

import sys

import numpy as np
import pytest

from caboose_daemon.rules.parts.baseline import BELOW, CLIP, MEMORY, NORMAL_TAIL, WARMUP, Baseline


def learned(*values: float) -> Baseline:
    baseline = Baseline()
    for value in values:
        baseline.learn(value)
    return baseline


def size(baseline: Baseline) -> int:
    """Bytes of everything it holds."""
    total = 0
    for value in vars(baseline).values():
        total += sys.getsizeof(value) + (sum(map(sys.getsizeof, value)) if isinstance(value, list) else 0)
    return total


def test_is_ready_after_its_warm_up() -> None:
    assert not learned(*[1.0] * (WARMUP - 1)).is_ready
    assert learned(*[1.0] * WARMUP).is_ready


def test_is_constant_in_memory() -> None:
    baseline = learned(*np.random.default_rng(0).normal(2.0, 0.1, 100).tolist())
    before = size(baseline)

    for value in np.random.default_rng(1).normal(2.0, 0.1, 100_000).tolist():
        baseline.learn(value)

    assert size(baseline) == before


def test_what_it_keeps_does_not_grow_with_what_it_saw() -> None:
    short = learned(*[2.0] * WARMUP)
    long = learned(*[2.0] * 5000)

    assert {name: type(value) for name, value in vars(long).items()} == {
        name: type(value) for name, value in vars(short).items()
    }
    assert len(long._first) == len(short._first) == WARMUP


@pytest.mark.parametrize("seed", range(3))
def test_level_and_scale_of_normal_noise_are_found(seed: int) -> None:
    baseline = learned(*np.random.default_rng(seed).normal(5.0, 0.2, 2000).tolist())

    assert baseline.level == pytest.approx(5.0, abs=0.15)
    assert baseline.scale == pytest.approx(0.2, rel=0.5)


def test_one_outlier_moves_the_level_by_no_more_than_the_clip() -> None:
    baseline = learned(*[1.9, 2.1] * 20)
    level, scale = baseline.level, baseline.scale

    baseline.learn(1e12)

    assert baseline.level - level == pytest.approx(CLIP * scale / MEMORY)
    assert baseline.scale < 1.1 * scale


def test_outliers_in_the_warm_up_leave_the_level_alone() -> None:
    assert learned(*[1.0] * (WARMUP - 2), 1e6, 1e6).level == 1.0


def test_follows_a_series_that_moves() -> None:
    baseline = learned(*(10.0 - 0.01 * i for i in range(800)))

    assert baseline.level == pytest.approx(2.0, abs=0.6)


def test_a_constant_series_still_has_a_scale() -> None:
    assert learned(*[2.0] * 100).scale == pytest.approx(0.002)
    assert learned(*[0.0] * 100).scale > 0


def test_excess_counts_in_scales() -> None:
    baseline = learned(*[1.9, 2.1] * 20)

    assert baseline.excess(baseline.level + 3 * baseline.scale) == pytest.approx(3.0)


def test_a_trend_and_the_first_fall_do_not_count_as_scatter() -> None:
    """First differences would make a scale of 0.1 of this, and blind the baseline for what comes next."""
    assert learned(*(10.0 - 0.1 * i for i in range(60))).scale < 0.02
    falling = [2.0 + 8.0 * 0.8**i for i in range(60)]
    assert learned(*falling).scale < 0.02


def test_slow_wandering_counts_as_scatter_though_its_neighbours_are_close() -> None:
    wandering = learned(*(2.0 + 0.3 * np.sin(np.arange(2000) / 40)).tolist())

    assert wandering.scale > 0.05


def test_a_level_that_everything_lies_under_drops_to_the_highest_of_it() -> None:
    baseline = learned(*[10.0] * 40)
    for i in range(BELOW):
        baseline.learn(5.0 - 0.01 * i)

    assert baseline.level == 5.0


def test_the_tail_of_normal_noise_is_what_one_in_a_hundred_exceeds() -> None:
    baseline = learned(*np.random.default_rng(0).normal(5.0, 0.2, 5000).tolist())

    assert NORMAL_TAIL <= baseline.tail < 1.7 * NORMAL_TAIL


def test_the_tail_of_a_run_with_outliers_reaches_out_to_them() -> None:
    """Every fortieth value lies twenty scales above: a part of this run's nature."""
    values = np.random.default_rng(0).normal(5.0, 0.1, 5000)
    values[::40] += 2.0
    baseline = learned(*values.tolist())

    assert baseline.tail > 3 * NORMAL_TAIL
    assert baseline.level == pytest.approx(5.0, abs=0.15)


def test_the_tail_is_forgotten_when_the_outliers_stop() -> None:
    generator = np.random.default_rng(0)
    values = generator.normal(5.0, 0.1, 3000)
    values[:2000:40] += 2.0
    wild = learned(*values[:2000].tolist())
    calm = learned(*values.tolist())

    assert calm.tail < 0.5 * wild.tail
