"""lr_too_high: updates that write the weights anew, and a loss that lies above where the run began."""

import numpy as np
import pytest

from caboose_wire import Layer
from support.curves import Float64, Watch, cosine, falling, flat, noisy, power_law, views
from support.scenario import NAN

STEPS = 500
PERSIST = 30


def sampled(*ratios: float, every: int = 50) -> dict[int, float]:
    """The update-to-weight ratio on every fiftieth step."""
    return {every * (i + 1): ratio for i, ratio in enumerate(ratios)}


def risen(height: float, *, at: int = 10, steps: int = STEPS) -> Float64:
    """A loss that begins at 2.3 and then lies at this many times that."""
    return noisy(np.concatenate([flat(at, 2.3), flat(steps - at, 2.3 * height)]), 0.02)


def watch(losses: Float64, updates: dict[int, float] | None = None, **about: object) -> Watch:
    return Watch("lr_too_high").over(views(losses, updates=updates, **about))


HEALTHY = noisy(falling(STEPS), 0.02)


# Updates


def test_updates_of_up_to_a_tenth_of_the_weights_are_not_told_and_larger_ones_are() -> None:
    assert watch(HEALTHY, sampled(0.09, 0.09, 0.09)).is_silent

    episode = watch(HEALTHY, sampled(0.11, 0.11), lr=flat(STEPS, 0.5)).only()
    assert (episode.severity, episode.first.step, episode.first.phase) == ("warning", 100, "update")
    assert episode.first.summary == (
        "the typical weight matrix moves by 11 % of itself in a step at a learning rate of 0.5"
    )


def test_one_sampled_step_is_not_enough() -> None:
    assert watch(HEALTHY, sampled(0.5, 0.001, 0.5, 0.001)).is_silent


def test_tensors_that_change_by_much_of_themselves_in_healthy_runs_are_left_out() -> None:
    layers = (
        Layer(name="blocks.0.weight", numel=4096, kind="Linear"),
        Layer(name="blocks.0.bias", numel=512, kind="Linear"),
        Layer(name="norm.weight", numel=512, kind="LayerNorm"),
        Layer(name="gate", numel=8, kind="Gate"),
        Layer(name="frozen.weight", numel=4096, kind="Linear", trainable=False),
    )
    healthy = {50 * i: (0.001, 5.0, 5.0, 5.0, 5.0) for i in range(1, 9)}
    sick = {50 * i: (0.2, 0.001, 0.001, 0.001, 0.001) for i in range(1, 9)}

    assert Watch("lr_too_high").over(views(HEALTHY, updates=healthy, layers=layers)).is_silent
    assert not Watch("lr_too_high").over(views(HEALTHY, updates=sick, layers=layers)).is_silent


def test_a_zero_initialised_matrix_among_others_does_not_make_the_median() -> None:
    layers = tuple(Layer(name=f"blocks.{i}.weight", numel=4096, kind="Linear") for i in range(5))
    ratios = {50 * i: (0.001, 0.001, 0.001, 30.0, -1.0) for i in range(1, 9)}

    assert Watch("lr_too_high").over(views(HEALTHY, updates=ratios, layers=layers)).is_silent


# The loss


def test_a_loss_that_soon_lies_half_above_its_beginning_is_told() -> None:
    assert watch(risen(1.4)).is_silent

    episode = watch(risen(1.7)).only()
    assert episode.severity == "warning"
    assert episode.first.onset_step == episode.first.step - PERSIST + 1
    assert "above the 2.3" in episode.first.summary


def test_a_loss_that_is_above_for_less_than_thirty_steps_is_not_told() -> None:
    losses = np.concatenate([flat(10, 2.3), flat(20, 5.0), falling(400, 2.3, 0.5)])

    assert watch(noisy(losses, 0.02)).is_silent


def test_a_later_divergence_has_other_causes() -> None:
    assert watch(risen(3.0, at=301, steps=700)).is_silent


def test_its_thresholds_can_be_configured() -> None:
    large = sampled(0.2, 0.2)

    assert Watch("lr_too_high", max_update=0.5).over(views(HEALTHY, updates=large)).is_silent
    assert Watch("lr_too_high", samples=3).over(views(HEALTHY, updates=large)).is_silent
    assert Watch("lr_too_high", worse_than_start=2.0).over(views(risen(1.7))).is_silent
    assert Watch("lr_too_high", start_steps=5).over(views(risen(1.7))).is_silent
    assert Watch("lr_too_high", persist_steps=600).over(views(risen(1.7))).is_silent


# Severity


def test_both_together_are_critical() -> None:
    assert watch(risen(1.7), sampled(0.2, 0.2)).only().severity == "critical"


# Recovery


def test_is_over_when_the_updates_are_in_range_again() -> None:
    episode = watch(HEALTHY, sampled(0.2, 0.2, 0.001)).only()

    assert (episode.last.state, episode.last.step) == ("resolved", 150)
    assert episode.last.summary == "updates and loss are in range again"


def test_is_over_when_the_loss_has_been_back_for_a_while() -> None:
    losses = np.concatenate([flat(10, 2.3), flat(100, 5.0), falling(390, 2.3, 0.5)])
    episode = watch(noisy(losses, 0.02)).only()

    assert episode.last.state == "resolved"
    assert 110 + 2 * PERSIST < episode.last.step < 110 + 2 * PERSIST + 20


# Look-alikes


def test_a_bump_in_the_warm_up_is_waited_for() -> None:
    losses = noisy(np.concatenate([flat(10, 2.3), flat(100, 5.0), falling(390, 5.0, 0.5, 10)]), 0.02)

    assert watch(losses, lr=cosine(STEPS, 1e-3, 130)).is_silent
    assert not watch(losses, lr=flat(STEPS, 1e-3)).is_silent


@pytest.mark.parametrize("noise", [0.02, 0.3])
def test_a_long_noisy_healthy_run_is_not_told(noise: float) -> None:
    healthy = dict.fromkeys(range(0, 4000, 100), 2e-3)

    assert watch(noisy(power_law(4000), noise), healthy, lr=cosine(4000)).is_silent


def test_a_resumed_run_does_not_show_where_it_began() -> None:
    """It begins at a lucky low and settles at twice that."""
    assert watch(noisy(np.concatenate([flat(5, 1.0), flat(295, 2.0)]), 0.02), is_resumed=True).is_silent
    assert watch(noisy(np.concatenate([flat(40, 1.0), flat(260, 2.0)]), 0.02), is_resumed=True).is_silent


# Blindness and restarts


def test_abstains_without_a_loss() -> None:
    assert watch(risen(3.0), sampled(0.2, 0.2), visible=frozenset({"gradients"})).is_silent


def test_without_a_look_at_the_weights_the_loss_is_still_judged() -> None:
    assert not watch(risen(1.7), visible=frozenset({"loss"})).is_silent


def test_losses_that_are_not_numbers_are_left_out() -> None:
    losses = noisy(falling(STEPS), 0.02)
    losses[20:60] = NAN

    assert watch(losses).is_silent


@pytest.mark.parametrize("updates", [None, sampled(0.2, 0.2, 0.2, 0.2)])
def test_goes_on_with_the_same_onset_after_a_restart(updates: dict[int, float] | None) -> None:
    run = views(risen(1.7) if updates is None else HEALTHY, updates=updates)
    watched = Watch("lr_too_high").over(run, steps=130)
    onset = watched.only().first.onset_step

    episode = watched.restarted().over(run, steps=40).only()

    assert (episode.last.onset_step, episode.is_open) == (onset, True)
    assert episode.last.step == 169


def test_ends_after_a_restart_when_it_is_over() -> None:
    losses = noisy(np.concatenate([flat(10, 2.3), flat(100, 5.0), falling(390, 2.3, 0.5)]), 0.02)
    run = views(losses)

    assert Watch("lr_too_high").over(run, steps=80).restarted().over(run).only().last.state == "resolved"
