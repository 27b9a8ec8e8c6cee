"""lr_too_high: updates that write the weights anew, and a loss that lies above where the run began."""

import msgspec
import numpy as np
import pytest

from caboose_wire import Layer
from support.curves import Float64, Watch, cosine, falling, flat, noisy, power_law, views
from support.scenario import NAN, heavy_tailed
from support.summaries import lacks

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
    assert lacks(episode.first.summary, "11 % per step", "limit 10 %", "learning rate 0.5") == []


def test_one_sampled_step_is_not_enough() -> None:
    assert watch(HEALTHY, sampled(0.5, 0.001, 0.5, 0.001)).is_silent


def test_one_step_that_writes_the_weights_anew_is_told_where_the_loss_comes_to_nothing_after_it() -> None:
    stuck = noisy(flat(STEPS, 2.3), 0.02)

    assert watch(stuck, sampled(0.29, 0.01, 0.01)).is_silent
    assert watch(noisy(falling(STEPS), 0.02), sampled(1.3, 0.01, 0.01)).is_silent, "tiny weights, and it learns"
    episode = watch(stuck, sampled(1.3, 0.01, 0.01)).only()
    assert (episode.severity, episode.first.onset_step, episode.first.step) == ("warning", 50, 249)
    assert episode.first.values["is_stuck"] == 1
    assert lacks(episode.first.summary, "by 130 %", "stuck at 2.") == []


def test_it_is_over_when_the_loss_falls_after_all() -> None:
    late = noisy(np.concatenate([flat(400, 2.3), np.linspace(2.3, 0.5, 400)]), 0.02)

    episode = watch(late, sampled(1.3, 0.01, 0.01)).only()
    assert (episode.last.state, episode.is_open) == ("resolved", False)


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
    assert lacks(episode.first.summary, "against 2.3") == []


def test_a_loss_that_is_above_for_less_than_thirty_steps_is_not_told() -> None:
    losses = np.concatenate([flat(10, 2.3), flat(20, 4.2), falling(400, 2.3, 0.5)])

    assert watch(noisy(losses, 0.02)).is_silent


def test_ten_of_the_first_forty_losses_at_twice_the_first_are_a_warning_and_twenty_are_critical() -> None:
    """Also in a warm-up, which raises no loss so far."""

    def bump(num: int, height: float = 2.4) -> Float64:
        return noisy(np.concatenate([flat(5, 2.3), flat(num, 2.3 * height), falling(STEPS - 5 - num, 2.3, 0.5)]), 0.02)

    warm_up = cosine(STEPS, 1e-3, 130)
    assert watch(bump(9), lr=warm_up).is_silent
    assert watch(bump(30, 1.8), lr=warm_up).is_silent
    assert watch(bump(12), lr=warm_up).only().severity == "warning"
    assert watch(bump(25), lr=warm_up).only().severity == "critical"
    assert watch(bump(12), lr=warm_up).only().last.state == "resolved"


def test_ten_rows_of_a_log_at_twice_its_first_are_critical() -> None:
    """A row of a log stands for many steps."""
    losses = noisy(np.concatenate([flat(4, 7.0), flat(26, 20.0)]), 0.2)
    rows = (msgspec.structs.replace(v, step=msgspec.structs.replace(v.step, reports={})) for v in views(losses))

    assert Watch("lr_too_high").over(rows).only().severity == "critical"


def test_a_later_divergence_has_other_causes() -> None:
    assert watch(risen(3.0, at=301, steps=700)).is_silent


def test_where_it_began_is_its_very_first_loss() -> None:
    """The first step has broken the second one already."""
    losses = np.concatenate([[2.3], flat(60, 9.0), falling(400, 9.0, 3.0, 20)])

    assert watch(noisy(losses, 0.02)).only().first.step < PERSIST + 10


def test_a_first_batch_that_was_merely_easy_is_not_where_it_began() -> None:
    """Half of what the others have, as one batch in twenty of this run."""
    losses = noisy(flat(STEPS, 2.3), 0.3)
    losses[0] = 1.0

    assert watch(losses).is_silent


# Thrown off, and dead since


def thrown(height: float, *, at: int = 10, stands_at: float = 2.3, steps: int = STEPS) -> Float64:
    """A loss that begins at 2.3, is thrown up by ten steps, and then stands."""
    return noisy(np.concatenate([flat(at, 2.3), flat(10, 2.3 * height), flat(steps - at - 10, stands_at)]), 0.02)


def test_a_loss_that_was_thrown_up_and_stands_where_it_began_is_told() -> None:
    assert watch(thrown(1.3)).is_silent

    episode = watch(thrown(2.0), lr=flat(STEPS, 1.0)).only()
    assert (episode.severity, episode.is_open) == ("warning", True)
    assert 10 <= episode.first.onset_step < 20
    assert episode.first.step - episode.first.onset_step >= 2 * 100 - 1, "two stretches of a hundred steps"
    assert episode.first.values["is_thrown"] == 1
    assert lacks(episode.first.summary, "from 2.", "stuck at 2.", "learning rate 1") == []


def test_two_jumps_apart_are_enough_and_one_is_an_outlier() -> None:
    losses = noisy(flat(STEPS, 2.3), 0.02)
    losses[1] = 5.9
    assert watch(losses).is_silent

    losses[150] = 7.5
    assert watch(losses).only().first.onset_step == 1


def test_a_spike_that_heals_after_a_calm_while_is_no_throw_and_one_that_ends_higher_is() -> None:
    assert watch(thrown(3.0, at=40)).is_silent
    assert not watch(thrown(3.0, at=19)).is_silent, "before that nothing is known of the rate"

    learned = np.concatenate([falling(60, 2.3, 1.5, 20), flat(10, 7.0), flat(STEPS - 70, 2.3)])
    assert not watch(noisy(learned, 0.02)).is_silent, "what it had learned is gone"


def test_a_norm_that_was_thrown_up_and_is_gone_is_told_where_nothing_was_learned() -> None:
    norms = np.concatenate([flat(10, 0.5), flat(10, 5.0), flat(STEPS - 20, 0.1)])
    losses = noisy(flat(STEPS, 2.3), 0.02)

    assert watch(losses, norms=norms / norms).is_silent
    healed = np.concatenate([flat(10, 0.5), flat(10, 15.0), flat(STEPS - 20, 0.5)])
    assert watch(losses, norms=healed).is_silent, "it is back where it was"
    assert watch(noisy(falling(STEPS), 0.02), norms=norms).is_silent
    episode = watch(losses, norms=norms).only()
    assert lacks(episode.first.summary, "gradient norm jumped to 5 at step 10", "stuck at 2.") == []


def test_a_rough_start_of_a_run_that_learns_is_not_told() -> None:
    losses = np.concatenate([flat(10, 2.3), flat(9, 6.0), falling(STEPS - 19, 2.3, 1.2, 150)])

    assert watch(noisy(losses, 0.02)).is_silent


def test_a_jump_in_the_warm_up_or_late_in_the_run_does_not_count() -> None:
    assert watch(thrown(1.9), lr=cosine(STEPS, 1e-3, 60)).is_silent
    assert watch(thrown(3.0, at=320, steps=900)).is_silent


@pytest.mark.parametrize("seed", range(4))
def test_the_highest_of_many_noisy_losses_is_no_jump(seed: int) -> None:
    losses = noisy(flat(1500, 2.3), 0.25, seed=seed, scatter=heavy_tailed)

    assert watch(np.abs(losses)).is_silent


def single_samples(seed: int, *, steps: int = 2500) -> Float64:
    """Squared errors of one sample each, of a linear model that learns: a first one of a hundredth is nothing odd."""
    losses = falling(steps, 20.0, 0.09, 40) * np.random.default_rng(seed).standard_normal(steps) ** 2
    losses[0] = 0.05
    return losses


@pytest.mark.parametrize("seed", range(6))
def test_a_first_loss_that_is_low_by_luck_is_not_where_a_noisy_run_began(seed: int) -> None:
    assert watch(single_samples(seed)).is_silent


def test_a_calm_run_that_was_broken_by_its_first_step_and_stands_is_told_all_the_same() -> None:
    losses = np.concatenate([[2.3, 9.0, 30.0, 90.0, 40.0, 12.0], flat(STEPS - 6, 2.3)])

    assert watch(noisy(losses, 0.01)).only().first.values["first"] == pytest.approx(2.3, abs=0.05)


def test_what_was_thrown_off_and_learned_after_all_is_not_told_again() -> None:
    again = np.concatenate([falling(400, 2.3, 1.2, 100), flat(600, 2.3)])
    losses = np.concatenate([thrown(2.0), noisy(again, 0.02)])

    assert watch(losses).only().last.state == "resolved"


def test_a_rule_that_was_not_there_in_the_beginning_does_not_say_what_that_was() -> None:
    run = views(noisy(np.concatenate([flat(500, 1.0), flat(200, 3.0)]), 0.02))
    watched = Watch("lr_too_high").over(run, steps=480).restarted()

    assert watched.over(run).is_silent


def test_a_model_that_began_above_chance_is_compared_with_chance() -> None:
    losses = np.concatenate([flat(10, 4.6), flat(10, 9.0), flat(STEPS - 20, 2.3)])

    assert watch(noisy(losses, 0.01)).is_silent, "half of what it began with: it may have learned"
    assert not watch(noisy(losses, 0.01), config={"num_classes": 10}).is_silent


def test_is_over_when_a_run_that_was_thrown_off_learns_after_all() -> None:
    losses = np.concatenate([thrown(2.0), noisy(falling(400, 2.3, 0.5, 100), 0.02)])
    episode = watch(losses).only()

    assert (episode.last.state, episode.is_open) == ("resolved", False)


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


def test_is_over_when_the_loss_has_been_back_for_a_while() -> None:
    losses = np.concatenate([flat(10, 2.3), flat(100, 5.0), falling(390, 2.3, 0.5)])
    episode = watch(noisy(losses, 0.02)).only()

    assert episode.last.state == "resolved"
    assert 110 + 2 * PERSIST < episode.last.step < 110 + 2 * PERSIST + 25


# Look-alikes


def test_a_bump_in_the_warm_up_is_waited_for() -> None:
    losses = noisy(np.concatenate([flat(10, 2.3), flat(100, 4.2), falling(390, 4.2, 0.5, 10)]), 0.02)

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


def test_what_was_thrown_off_goes_on_after_a_restart_and_ends_when_it_learns() -> None:
    run = views(np.concatenate([thrown(2.0), noisy(falling(400, 2.3, 0.5, 100), 0.02)]))
    watched = Watch("lr_too_high").over(run, steps=300)
    onset = watched.only().first.onset_step

    watched = watched.restarted().over(run, steps=200)
    assert (watched.only().last.onset_step, watched.only().is_open) == (onset, True)
    assert watched.over(run).only().last.state == "resolved"


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
