"""Logs of twenty to sixty points: each stands for many steps, and what lasts is found in them too."""

from pathlib import Path

import numpy as np
import pytest

from support.curves import Watch, flat, noisy, power_law, views
from support.sparse import fallen, raised

# Overfitting


@pytest.mark.parametrize("rise", [0.12, 0.2, 0.4])
def test_an_evaluation_before_the_first_step_does_not_hide_overfitting(tmp_path: Path, rise: float) -> None:
    """The first fall is the largest change of all, and is no scatter."""
    training = noisy(fallen(21, 4.2, 0.5, 6), 0.003)
    validation = fallen(21, 4.2, 1.48, 0.8)
    validation[7:] *= np.linspace(1.0, 1.0 + rise, 14)

    assert raised(tmp_path, training, noisy(validation, 0.004)) == {"overfitting": "warning"}


def test_a_validation_loss_that_stays_near_its_best_is_no_overfitting(tmp_path: Path) -> None:
    validation = noisy(fallen(21, 4.2, 1.48, 0.8), 0.01)

    assert raised(tmp_path, noisy(fallen(21, 4.2, 0.5, 6), 0.003), validation) == {}


def test_a_validation_loss_that_is_carried_forward_is_one_evaluation(tmp_path: Path) -> None:
    """Some loggers write the last value into every row."""
    training = noisy(fallen(50, 6.0, 3.5, 15), 0.01)
    carried = np.repeat(noisy(fallen(10, 6.0, 3.2, 3), 0.01), 5)
    assert raised(tmp_path, training, carried) == {}

    stale = np.concatenate([carried[:20], np.full(30, carried[19])])
    assert raised(tmp_path, training, stale) == {"metric_divergence": "warning"}


# Divergence


@pytest.mark.parametrize("rise", [0.13, 0.3, 1.0])
def test_a_slow_rise_over_the_whole_run_pages(tmp_path: Path, rise: float) -> None:
    assert raised(tmp_path, noisy(np.linspace(0.9, 0.9 * (1 + rise), 24), 0.004))["divergence"] == "critical"


def test_a_rise_that_does_not_reach_the_start_of_the_run_is_a_warning(tmp_path: Path) -> None:
    losses = np.concatenate([fallen(12, 4.0, 1.0, 2), np.linspace(1.0, 1.2, 24)])

    assert raised(tmp_path, noisy(losses, 0.004)) == {"divergence": "warning"}


def test_a_rise_that_comes_back_and_a_live_run_of_few_steps_are_silent(tmp_path: Path) -> None:
    back = np.concatenate([fallen(12, 4.0, 1.0, 2), np.linspace(1.0, 1.15, 4), np.linspace(1.15, 0.9, 16)])
    assert raised(tmp_path, noisy(back, 0.004)) == {}

    live = noisy(np.concatenate([flat(40, 2.0), np.linspace(2.0, 2.4, 200)]), 0.004)
    assert Watch("divergence").over(views(live)).is_silent


def test_a_slow_rise_of_a_live_run_is_found_too() -> None:
    live = noisy(np.concatenate([flat(300, 2.0), np.linspace(2.0, 2.4, 1500)]), 0.05)

    assert "critical" in {episode.severity for episode in Watch("divergence").over(views(live)).episodes}


def test_two_rows_above_the_start_page_and_one_does_not(tmp_path: Path) -> None:
    """All that was learned is lost, in as many steps as two rows stand for."""
    losses = noisy(fallen(43, 6.4, 3.5, 4), 0.02)

    assert raised(tmp_path, np.concatenate([losses, [21.0]])) == {"loss_spike": "warning"}
    assert raised(tmp_path, np.concatenate([losses, [21.0, 21.2]]))["loss_spike"] == "critical"


# Not learning


def test_a_run_that_fell_at_once_and_not_since_has_learned_only_frequencies(tmp_path: Path) -> None:
    """A language model at the unigram entropy after its first interval."""
    stuck = noisy(np.concatenate([[4.25], flat(20, 3.317)]), 0.001)
    assert raised(tmp_path, stuck) == {"not_learning": "warning"}

    small = noisy(np.concatenate([[4.25], flat(20, 1.0)]), 0.001)
    assert raised(tmp_path, small) == {}, "far below its start: it has converged"
    slow = noisy(np.concatenate([[4.25], 3.317 * np.linspace(1.0, 0.97, 20)]), 0.001)
    assert raised(tmp_path, slow) == {}, "it still falls"


def test_a_healthy_log_of_forty_points_is_silent(tmp_path: Path) -> None:
    for seed in range(10):
        losses = noisy(power_law(40), 0.03, seed=seed)
        assert raised(tmp_path, losses, noisy(losses * 1.05, 0.03, seed=seed + 100)) == {}, seed
