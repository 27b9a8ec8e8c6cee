"""A whole run's curve in constant memory, and the line through it."""

import numpy as np
import pytest

from caboose_daemon.rules.parts.curve import CAPACITY, Curve, memory_of_changes, trend


def test_a_short_run_is_kept_as_it_is() -> None:
    curve = Curve()

    assert all(curve.add(float(i)) for i in range(CAPACITY - 1))
    assert curve.means == [float(i) for i in range(CAPACITY - 1)]
    assert curve.width == 1


def test_a_full_curve_is_joined_to_half_as_many_averages_of_twice_the_width() -> None:
    curve = Curve()
    for i in range(CAPACITY):
        curve.add(float(i))

    assert curve.width == 2
    assert curve.means == [2 * i + 0.5 for i in range(CAPACITY // 2)]
    assert not curve.add(1.0), "half a bucket is nothing to judge"
    assert curve.add(3.0)
    assert curve.means[-1] == 2.0


def test_never_holds_more_than_its_capacity_and_never_less_than_half_of_it() -> None:
    curve = Curve()
    for i in range(100_000):
        curve.add(1.0)
        assert len(curve.means) < CAPACITY
        assert i < CAPACITY or len(curve.means) >= CAPACITY // 2

    assert curve.num_points == 100_000


def test_its_averages_are_those_of_the_series() -> None:
    values = np.random.default_rng(0).normal(2.0, 1.0, 64 * 50)
    curve = Curve()
    for value in values.tolist():
        curve.add(value)

    assert curve.means == pytest.approx(values[: len(curve.means) * curve.width].reshape(-1, curve.width).mean(axis=1))


def test_a_line_is_found_exactly() -> None:
    line = trend([3.0, 2.5, 2.0, 1.5, 1.0])

    assert (line.change, line.error, line.level) == pytest.approx((-2.0, 0.0, 2.0))
    assert line.relative == pytest.approx(-1.0)
    assert line.falls()
    assert not line.rises()


def test_a_constant_neither_falls_nor_rises() -> None:
    line = trend([2.0] * 10)

    assert not line.falls()
    assert not line.rises()
    assert line.relative_error == 0.0


def test_the_error_of_a_flat_noisy_line_is_what_its_change_scatters_by() -> None:
    generator = np.random.default_rng(1)
    lines = [trend((2.0 + 0.1 * generator.standard_normal(40)).tolist()) for _ in range(400)]

    assert np.std([line.change for line in lines]) == pytest.approx(np.mean([line.error for line in lines]), rel=0.15)
    assert np.mean([line.falls(2.5) for line in lines]) < 0.03


def test_a_level_of_zero_still_has_shares() -> None:
    assert trend([-1.0, 0.0, 1.0]).relative > 0


def _wandering(num: int, keeps: float, seed: int) -> list[float]:
    values, last = [], 0.0
    for fresh in np.random.default_rng(seed).standard_normal(num).tolist():
        last = keeps * last + (1.0 - keeps * keeps) ** 0.5 * fresh
        values.append(10.0 + last)
    return values


@pytest.mark.parametrize("keeps", [0.0, 0.6, 0.9])
def test_a_trend_is_known_as_well_as_the_independent_values_are_many(keeps: float) -> None:
    """The change over its error scatters by one, also where values resemble their neighbours."""
    scores = []
    for seed in range(200):
        line = trend(_wandering(64, keeps, seed), remembers=True)
        scores.append(line.relative / line.relative_error)

    assert 0.6 < np.std(scores) < 1.6


@pytest.mark.parametrize("keeps", [0.0, 0.6, 0.9])
@pytest.mark.parametrize("slope", [0.0, 1.0])
def test_the_memory_of_a_series_does_not_depend_on_its_trend(keeps: float, slope: float) -> None:
    values = [value + slope * i for i, value in enumerate(_wandering(4000, keeps, 1))]

    assert memory_of_changes(values) == pytest.approx(keeps, abs=0.1)
    assert memory_of_changes(values[:5]) == 0.0
