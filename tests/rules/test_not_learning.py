"""not_learning: a loss that is flat since the beginning, told apart from noise, slow starts and warm-ups."""

import functools

import msgspec
import numpy as np
import pytest

from support.curves import Float64, Watch, cosine, falling, flat, noisy, power_law, views

watch = functools.partial(Watch, "not_learning", min_steps=80)
"""Less patient than it is by default, for shorter stories."""


def drop(steps: int, share: float, level: float = 2.3) -> Float64:
    """A loss that falls by this share of its level, along a straight line."""
    return level * (1.0 - share * np.arange(steps) / steps)


def test_is_silent_up_to_five_hundred_steps_and_speaks_soon_after() -> None:
    run = views(noisy(flat(1000), 0.005))
    watched = Watch("not_learning").over(run, steps=499)
    assert watched.is_silent

    first = watched.over(run).only().first
    assert (first.onset_step, first.severity) == (0, "warning")
    assert 499 <= first.step < 520, "with the bucket that completes the five hundred"
    assert first.summary.startswith("loss has been flat at 2")


def test_a_logged_point_stands_for_many_steps() -> None:
    """A row without ranks' reports is one of a log; eighty of them are enough."""
    rows = (msgspec.structs.replace(v, step=msgspec.structs.replace(v.step, reports={})) for v in views(flat(200)))

    assert Watch("not_learning").over(rows).only().first.step == 79


def test_the_number_of_steps_can_be_configured() -> None:
    assert Watch("not_learning", min_steps=400).over(views(noisy(flat(399), 0.005))).is_silent
    assert not Watch("not_learning", min_steps=400).over(views(noisy(flat(500), 0.005))).is_silent


def test_is_silent_when_the_loss_fell_by_more_than_a_hundredth_and_speaks_below() -> None:
    assert watch().over(views(noisy(drop(100, 0.015), 0.001))).is_silent
    assert not watch().over(views(noisy(drop(100, 0.001), 0.001))).is_silent


def test_is_silent_when_nobody_could_tell_and_speaks_when_one_can() -> None:
    """A fifth of scatter: a hundredth cannot be seen in a hundred steps, but in ten thousand."""
    run = views(noisy(flat(10_000), 0.2))
    watched = watch().over(run, steps=300)
    assert watched.is_silent

    assert not watched.over(run).is_silent


def test_a_loss_at_chance_is_named_where_the_number_of_classes_is_known() -> None:
    at_chance = noisy(flat(200, np.log(10)), 0.005)

    said = watch().over(views(at_chance, config={"num_classes": 10})).only().last.summary
    assert said == "loss has been flat at 2.303 since the beginning, which is chance for 10 classes"
    said = watch().over(views(at_chance, config={"num_classes": 1000})).only().last.summary
    assert "chance" not in said


def test_is_over_when_the_loss_falls() -> None:
    losses = noisy(np.concatenate([flat(300), falling(1000, 2.0, 0.5)]), 0.01)
    episode = watch().over(views(losses)).only()

    assert episode.last.state == "resolved"
    assert episode.last.summary == "the loss has begun to fall"
    assert 300 < episode.last.step < 500


@pytest.mark.parametrize("seed", range(5))
def test_does_not_come_and_go_while_the_loss_stands(seed: int) -> None:
    """With noise that puts the line on either side of what counts as learning, from bucket to bucket."""
    watched = watch().over(views(noisy(flat(2000), 0.05, seed=seed)))

    assert watched.only().is_open


def test_a_standstill_after_it_has_learned_is_another_rules() -> None:
    losses = noisy(np.concatenate([falling(300, 4.0, 2.0, 50), flat(3000)]), 0.01)

    assert watch().over(views(losses)).is_silent


# Look-alikes


def test_a_long_warm_up_from_a_rate_of_zero_is_waited_for() -> None:
    losses = noisy(np.concatenate([flat(600), falling(600, 2.0, 0.5)]), 0.005)

    assert watch().over(views(losses, lr=cosine(1200, 1e-3, 650))).is_silent
    assert not watch().over(views(losses, lr=flat(1200, 1e-3))).is_silent


def test_a_flat_loss_after_the_warm_up_is_told() -> None:
    watched = watch().over(views(noisy(flat(600), 0.005), lr=cosine(600, 1e-3, 200)))

    assert watched.only().first.step >= 200


def test_a_slow_start_that_surely_falls_is_learning() -> None:
    assert watch().over(views(noisy(drop(1000, 0.06), 0.002))).is_silent


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("noise", [0.02, 0.3])
def test_a_long_noisy_healthy_run_is_not_told(seed: int, noise: float) -> None:
    assert watch().over(views(noisy(power_law(3000), noise, seed=seed))).is_silent


@pytest.mark.parametrize("kind", ["data_switch", "resume"])
def test_a_declared_change_begins_anew(kind: str) -> None:
    watched = watch().over(views(noisy(flat(300), 0.005), declared={200: kind}))

    first, second = watched.episodes
    assert (first.last.state, first.last.step) == ("resolved", 200)
    assert (second.first.onset_step, second.first.step) == (200, 279)


# Blindness and restarts


def test_abstains_without_a_loss() -> None:
    assert watch().over(views(flat(500), visible=frozenset({"gradients"}))).is_silent


def test_losses_that_are_not_numbers_are_left_out() -> None:
    losses = noisy(falling(500, 4.0, 1.0), 0.01)
    losses[100:120] = np.nan

    assert watch().over(views(losses)).is_silent


def test_goes_on_with_the_same_onset_after_a_restart_and_ends_when_the_loss_falls() -> None:
    run = views(noisy(np.concatenate([flat(200), falling(800, 2.0, 0.5)]), 0.005))
    watched = watch().over(run, steps=150).restarted().over(run)

    episode = watched.only()
    assert episode.first.onset_step == episode.last.onset_step == 0
    assert episode.last.state == "resolved"
