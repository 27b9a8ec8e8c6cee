"""When a run stops: after validations without a new best, but not at the peak of a double descent."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from caboose.early_stopping.patience import Patience


def stops_at(values: Sequence[float], **options: object) -> int | None:
    """The number of the validation after which it stops."""
    patience = Patience(**options)  # type: ignore[arg-type]
    for number, value in enumerate(values, 1):
        patience.add(value)
        if patience.should_stop:
            return number
    return None


def test_it_stops_after_patience_without_a_new_best() -> None:
    assert stops_at([3.0, 2.0, 2.1, 2.2, 2.3, 2.4], patience=3) == 5
    assert stops_at([3.0, 2.0, 2.1, 1.9, 2.0, 2.0, 2.0], patience=3) == 7
    assert stops_at([3.0 - 0.1 * i for i in range(20)], patience=3) is None


def test_an_accuracy_is_better_when_it_is_higher() -> None:
    assert stops_at([0.5, 0.7, 0.6, 0.6, 0.6], patience=3, is_higher_better=True) == 5
    patience = Patience(is_higher_better=True)
    for value in (0.5, 0.7, 0.6):
        patience.add(value)
    assert (patience.best, patience.best_at, patience.is_best) == (0.7, 1, False)


def test_less_than_min_delta_is_no_improvement() -> None:
    values = [1.0, 0.999, 0.998, 0.997, 0.996]
    assert stops_at(values, patience=3, min_delta=0.01) == 4
    assert stops_at(values, patience=3) is None


def test_the_second_fall_of_a_double_descent_is_waited_for() -> None:
    rise, fall = np.linspace(1.0, 2.0, 4), np.linspace(2.0, 0.5, 12)
    values = [3.0, *rise, *fall[1:]]
    assert stops_at(values, patience=5) is None
    assert stops_at([3.0, *np.linspace(1.0, 2.0, 10)], patience=5) == 7, "a rise that goes on is none"


def test_a_second_fall_that_ends_above_the_best_is_not_waited_for_forever() -> None:
    values = [1.0, 2.0, 1.9, 1.8, 1.7, 1.6, 1.5, *[1.5] * 30]
    assert stops_at(values, patience=4) == 11


@pytest.mark.parametrize("seed", range(5))
def test_noise_around_a_level_is_no_second_fall(seed: int) -> None:
    noise = np.random.default_rng(seed).normal(0, 0.02, 60)
    values = [2.0, 1.5, *(1.6 + noise)]
    stopped = stops_at(values, patience=5)
    assert stopped is not None
    assert stopped <= 20


def test_nan_is_never_the_best() -> None:
    assert stops_at([math.nan] * 3, patience=3) == 3
    assert stops_at([2.0, math.nan, 1.0, math.nan, math.inf], patience=3) is None
