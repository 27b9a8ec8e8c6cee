"""underfitting: both losses high, close together and flat; and all that looks like it early, or only in part."""

import math

import numpy as np
import pytest

from support.curves import Float64, Watch, cosine, falling, flat, noisy, power_law, views
from support.scenario import NAN
from support.summaries import lacks

STEPS = 600


def watch(
    train: Float64, gap: float = 0.03, *, every: int = 50, thresholds: dict[str, object] | None = None, **about: object
) -> Watch:
    """Evaluations at this distance above the training loss, with little scatter."""
    losses = noisy(train, 0.01)
    scatter = noisy(np.ones(len(train)), 0.002, seed=1)
    at = {i: float(train[i] * (1 + gap) * scatter[i]) for i in range(every, len(train), every)}
    return Watch("underfitting", **(thresholds or {})).over(views(losses, validations=at, **about))


def high(steps: int = STEPS, share: float = 0.7) -> Float64:
    """A loss that fell to this share of where it began, and stands there."""
    return falling(steps, 4.0, 4.0 * share, 8)


# The threshold


def test_two_flat_losses_high_and_close_together_are_told() -> None:
    episode = watch(high()).only()

    assert (episode.severity, episode.is_open) == ("warning", True)
    assert episode.last.values["level"] == pytest.approx(2.8, rel=0.01)
    assert episode.last.values["validation"] == pytest.approx(episode.last.values["level"], rel=0.1)
    assert episode.last.values["reference"] > episode.last.values["level"]
    assert lacks(episode.last.summary, "training loss 2.", "validation loss 2.", "start 3.", "since step") == []


def test_a_run_that_kept_less_than_half_of_its_first_loss_is_not_high() -> None:
    assert watch(high(share=0.44)).is_silent
    assert not watch(high(share=0.52)).is_silent


def test_where_the_number_of_classes_is_known_chance_is_what_counts() -> None:
    """A fine-tuned model begins near its end, and both are far below chance."""
    tuned = falling(STEPS, 1.3, 1.1, 8)

    assert watch(tuned, config={"num_classes": 32000}).is_silent
    assert not watch(tuned, config={"num_classes": 4}).is_silent
    assert math.log(4) / 2 < 1.1 < math.log(32000) / 2


def watch_noisy(train: Float64, validation: Float64, noise: float = 0.09, seed: int = 0) -> Watch:
    """Small batches, and evaluations of always the same samples."""
    scatter = noisy(np.ones(len(train)), 0.003, seed=100 + seed)
    at = {i: float(validation[i] * scatter[i]) for i in range(50, len(train), 50)}
    return Watch("underfitting").over(views(noisy(train, noise, seed=seed), validations=at))


@pytest.mark.parametrize("seed", range(4))
def test_what_small_batches_hide_is_known_from_the_evaluations(seed: int) -> None:
    stands = falling(2000, 2.6, 1.7, 40)

    assert watch_noisy(stands, 1.01 * stands, seed=seed).only().is_open, "and it does not come and go"


@pytest.mark.parametrize("seed", range(4))
def test_a_run_that_still_learns_is_not_told_however_small_its_batches(seed: int) -> None:
    for end, memory in ((1.4, 1500), (1.5, 800)):
        learns = falling(2000, 2.6, end, memory)
        assert watch_noisy(learns, 1.01 * learns, seed=seed).is_silent


@pytest.mark.parametrize("seed", range(4))
def test_a_training_loss_that_is_seen_to_fall_while_validation_stands_is_not_told(seed: int) -> None:
    steps = np.arange(2000)
    train = falling(2000, 2.6, 1.7, 40) * (1.0 - 0.12 * steps / 2000)

    assert watch_noisy(train, falling(2000, 2.6, 1.7, 40), noise=0.05, seed=seed).is_silent


def test_a_training_loss_that_nobody_can_see_through_is_waited_for() -> None:
    stands = falling(1000, 2.6, 1.7, 40)

    assert watch_noisy(stands, stands, noise=0.5).is_silent


def test_a_run_that_stands_where_it_began_was_trained_before_or_never_learns() -> None:
    assert watch(falling(STEPS, 2.77, 2.72, 30)).is_silent, "fine-tuned"
    assert watch(flat(STEPS, 2.3)).is_silent
    assert not watch(flat(STEPS, 2.3), config={"num_classes": 10}).is_silent


def test_a_gap_of_more_than_a_tenth_is_not_close() -> None:
    assert watch(high(), gap=0.12).is_silent
    assert not watch(high(), gap=0.08).is_silent


def test_either_loss_that_still_falls_is_not_flat() -> None:
    assert watch(4.0 - 0.002 * np.arange(STEPS)).is_silent


def test_comes_late_by_design() -> None:
    run = watch(high(), every=10)
    assert run.only().first.step >= 100

    assert watch(high(249)).is_silent, "four evaluations are too few"
    assert watch(high(), thresholds={"min_steps": 1000}).is_silent
    assert watch(high(), thresholds={"min_evaluations": 20}).is_silent


def test_its_other_thresholds_can_be_configured() -> None:
    assert watch(high(), thresholds={"kept": 0.8}).is_silent
    assert watch(high(), thresholds={"gap": 0.01}).is_silent
    assert watch(high(), thresholds={"min_improvement": 1e-6}).is_silent


# Recovery


def test_is_over_when_the_losses_move_again() -> None:
    episode = watch(np.concatenate([high(), falling(600, 2.8, 0.5, 150)])).only()

    assert episode.last.state == "resolved"


# Look-alikes


def test_early_training_is_not_told() -> None:
    assert watch(power_law(300), every=20).is_silent


def test_a_converged_run_is_not_told() -> None:
    assert watch(falling(3000, 4.0, 0.5, 100)).is_silent


def test_a_warm_up_is_waited_for() -> None:
    assert watch(high(), lr=cosine(STEPS, 1e-3, STEPS)).is_silent


@pytest.mark.parametrize("noise", [0.02, 0.2])
def test_a_long_noisy_healthy_run_is_not_told(noise: float) -> None:
    curve = power_law(4000)
    at = {i: float(curve[i] * 1.02) for i in range(100, 4000, 100)}

    assert Watch("underfitting").over(views(noisy(curve, noise), validations=at)).is_silent


def test_a_declared_switch_of_the_data_begins_anew() -> None:
    """What it began anew with is where it stands: of a model that was trained before nothing is said."""
    episode = watch(high(), declared={400: "data_switch"}, every=25).only()

    assert episode.last.step == 400
    assert episode.last.state == "resolved"


# Blindness and restarts


def test_abstains_without_validation() -> None:
    assert Watch("underfitting").over(views(noisy(high(), 0.01))).is_silent


def test_abstains_without_a_loss() -> None:
    assert watch(high(), visible=frozenset({"gradients"})).is_silent


def test_evaluations_that_are_not_numbers_are_left_out() -> None:
    at = dict.fromkeys(range(50, STEPS, 50), NAN)

    assert Watch("underfitting").over(views(noisy(high(), 0.01), validations=at)).is_silent


def test_goes_on_with_the_same_onset_after_a_restart() -> None:
    at = dict.fromkeys(range(50, STEPS, 50), 2.85)
    run = views(noisy(np.concatenate([high(), flat(10)]), 0.01)[:STEPS], validations=at)
    watched = Watch("underfitting").over(run, steps=400)
    onset = watched.only().first.onset_step

    watched.restarted().over(run)

    assert (watched.only().last.onset_step, watched.only().last.step) == (onset, STEPS - 1)
