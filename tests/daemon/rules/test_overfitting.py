"""overfitting: validation that rises while training falls, told apart from one bad evaluation and from noise."""

import numpy as np
import pytest

from support.curves import Float64, Watch, falling, flat, noisy, power_law, views
from support.scenario import NAN
from support.summaries import lacks

EVERY = 50


def watch(*evaluations: float, losses: Float64 | None = None, **thresholds: object) -> Watch:
    """Evaluations every fifty steps, beside a training loss that falls."""
    steps = EVERY * (len(evaluations) + 1)
    train = noisy(falling(steps, 3.0, 0.2, 400), 0.02) if losses is None else losses[:steps]
    at = {EVERY * (i + 1): value for i, value in enumerate(evaluations)}
    return Watch("overfitting", **thresholds).over(views(train, validations=at))


GENTLE = (1.56, 1.54, 1.52, 1.51, 1.50)
"""Validation that gets better, by little: its usual change is 0.015."""


# The threshold


def test_a_rise_by_less_than_eight_hundredths_is_not_told_and_one_by_more_is() -> None:
    assert watch(*GENTLE, 1.60, 1.61, 1.615).is_silent

    episode = watch(*GENTLE, 1.63, 1.64).only()
    assert (episode.severity, episode.first.step, episode.first.onset_step) == ("warning", 7 * EVERY, 5 * EVERY)
    assert lacks(episode.first.summary, "1.64", "9 % above its best 1.5 at step 250") == []


def test_validation_below_zero_is_measured_by_the_way_it_came() -> None:
    """A log-likelihood that comes down by 2, to just below zero: the size of its best says nothing."""
    down = tuple(2.0 * np.exp(-np.arange(30) / 5) - 0.01)
    assert watch(*down, 0.13, 0.14, 0.14).is_silent

    summary = watch(*down, *[0.3] * 5).only().first.summary
    assert lacks(summary, "15 % of its improvement", "best -0.0026") == []


def test_one_bad_evaluation_is_noise() -> None:
    assert watch(*GENTLE, 2.5).is_silent
    assert watch(*GENTLE, 2.5, 1.49, 1.48, 2.5, 1.47).is_silent


def test_three_rises_in_a_row_are_enough_as_soon_as_they_lead_above() -> None:
    assert watch(*GENTLE, 1.54, 1.58, 1.64).only().first.step == 8 * EVERY


def test_a_rise_within_the_usual_changes_of_validation_is_not_told() -> None:
    jumpy = (1.6, 1.3, 1.6, 1.25, 1.55, 1.3)

    assert watch(*jumpy, 1.5, 1.55).is_silent
    assert not watch(*jumpy, 3.5, 3.6).is_silent


def test_the_first_evaluation_of_a_rise_that_lasts_is_not_taken_for_scatter() -> None:
    """With more than eight evaluations the median hides it for one more; it must not raise the bar for the next."""
    restless = (1.63, 1.57, 1.65, 1.61, 1.54, 1.53, 1.56, 1.49)

    assert not watch(*restless, 1.66, 1.76, 1.66).is_silent


def test_its_thresholds_can_be_configured() -> None:
    assert watch(*GENTLE, 1.63, 1.64, rise=0.2).is_silent
    assert watch(*GENTLE, 1.63, 1.62, 1.63, persist=4, rises=9).is_silent
    assert watch(*GENTLE, 1.63, 1.64, min_evaluations=8).is_silent
    assert watch(*GENTLE, 1.63, 1.64, scatters=50.0).is_silent


def test_is_never_more_urgent_than_a_warning() -> None:
    assert watch(*GENTLE, *(2.0 + i for i in range(20))).only().severity == "warning"


# Recovery


def test_is_over_when_validation_is_near_its_best_again() -> None:
    episode = watch(*GENTLE, 1.70, 1.75, 1.80, 1.50, 1.50).only()

    assert episode.last.state == "resolved"
    assert episode.last.step == 10 * EVERY, "with more than eight evaluations their medians over three are judged"


def test_a_second_rise_after_it_came_down_is_told_with_a_note() -> None:
    """Double descent: whoever stops at the first rise would have missed what came after."""
    watched = watch(*GENTLE, 1.9, 2.0, 2.1, *[1.4] * 4, *[2.4] * 6)

    assert len(watched.episodes) == 2
    assert "an earlier rise" in watched.episodes[-1].last.summary


# Look-alikes


def test_a_training_loss_that_rises_as_well_is_another_matter() -> None:
    rising = np.concatenate([falling(250, 3.0, 1.4, 60), np.linspace(1.4, 3.0, 400)])

    assert watch(*GENTLE, 1.8, 2.0, 2.2, losses=noisy(rising, 0.02)).is_silent


def test_a_gap_that_does_not_grow_is_generalisation_as_usual() -> None:
    assert watch(*(1.5 * value for value in falling(40, 2.0, 1.0, 5).tolist())).is_silent


@pytest.mark.parametrize("seed", range(5))
def test_many_noisy_evaluations_around_a_level_are_not_told(seed: int) -> None:
    values = noisy(falling(200, 3.0, 1.5, 20), 0.06, seed=seed)

    assert watch(*values.tolist(), losses=noisy(power_law(EVERY * 201), 0.05, seed=seed)).is_silent


def test_a_declared_switch_of_the_data_begins_anew() -> None:
    train = noisy(falling(900, 3.0, 0.2, 400), 0.02)
    at = dict(zip(range(50, 900, 50), [*GENTLE, *[2.2] * 12], strict=True))

    assert Watch("overfitting").over(views(train, validations=at, declared={275: "data_switch"})).is_silent


# Blindness and restarts


def test_abstains_without_validation() -> None:
    assert Watch("overfitting").over(views(noisy(falling(1000), 0.02))).is_silent


def test_abstains_without_a_loss() -> None:
    run = views(flat(300), validations={50: 1.0, 100: 2.0, 150: 3.0, 200: 4.0}, visible=frozenset({"validation"}))

    assert Watch("overfitting").over(run).is_silent


def test_evaluations_that_are_not_numbers_are_left_out() -> None:
    assert watch(*GENTLE, NAN, NAN, NAN, 1.49).is_silent


def test_an_evaluation_without_a_loss_says_nothing() -> None:
    at = {step: {"accuracy": 0.5} for step in range(50, 500, 50)}

    assert Watch("overfitting").over(views(falling(500), validations=at)).is_silent


def test_goes_on_with_the_same_onset_and_best_after_a_restart() -> None:
    at = dict(zip(range(50, 600, 50), [*GENTLE, 1.7, 1.8, 1.9, 2.0, 1.5, 1.4], strict=True))
    run = views(noisy(falling(600, 3.0, 0.2, 400), 0.02), validations=at)
    watched = Watch("overfitting").over(run, steps=420).restarted().over(run)

    episode = watched.only()
    assert (episode.last.onset_step, episode.last.state) == (250, "resolved")
    assert episode.first.values["best"] == 1.5


def test_the_usual_change_of_validation_outlives_a_restart() -> None:
    """Above its best by more than eight hundredths, but within what this validation does all the time."""
    jumpy = (1.6, 1.3, 1.6, 1.25, 1.55, 1.3)
    at = dict(zip(range(50, 650, 50), [*jumpy, 3.5, 3.6, 1.45, 1.45, 1.45, 1.45], strict=True))
    run = views(noisy(falling(700, 3.0, 0.2, 400), 0.02), validations=at)
    watched = Watch("overfitting").over(run, steps=420).restarted().over(run)

    assert watched.only().last.state == "resolved"
