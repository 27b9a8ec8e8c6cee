"""plateau: a standstill with a reason, told apart from a run that has converged and from slow progress."""

import itertools

import numpy as np
import pytest

from support.curves import Float64, Watch, cosine, falling, flat, noisy, power_law, views
from support.seeds import seeds
from support.summaries import lacks

LONG = 1500


def stuck(steps: int = LONG, *, at: float = 0.9) -> Float64:
    """A loss that fell a little and then stands at this share of its beginning."""
    return falling(steps, 4.0, 4.0 * at, 20)


def rate(decays_at: int, to: float, steps: int = LONG) -> Float64:
    return np.where(np.arange(steps) < decays_at, 1e-3, 1e-3 * to)


# A saddle, or no capacity


def test_a_loss_that_stands_near_where_it_began_is_told() -> None:
    first = Watch("plateau").over(views(noisy(stuck(), 0.01), lr=flat(LONG, 1e-3))).only().first

    assert (first.severity, first.step >= 199) == ("warning", True)
    assert lacks(first.summary, "loss flat at", "start", "learning rate 0.001") == []


def test_the_same_loss_further_down_has_converged() -> None:
    assert Watch("plateau").over(views(noisy(stuck(at=0.75), 0.01), lr=flat(LONG, 1e-3))).is_silent


def test_what_counts_as_near_the_beginning_can_be_configured() -> None:
    assert not Watch("plateau", near_start=0.7).over(views(noisy(stuck(at=0.75), 0.01))).is_silent


def test_is_silent_before_two_hundred_steps() -> None:
    assert Watch("plateau").over(views(noisy(stuck(199), 0.002))).is_silent
    assert not Watch("plateau", min_steps=100).over(views(noisy(stuck(199), 0.002))).is_silent


def test_a_fine_tuned_model_begins_near_its_end_and_is_known_by_its_distance_from_chance() -> None:
    losses = noisy(falling(LONG, 1.3, 1.15, 40), 0.01)

    assert Watch("plateau").over(views(losses, lr=flat(LONG, 2e-5), config={"num_classes": 32000})).is_silent
    assert not Watch("plateau").over(views(losses, lr=flat(LONG, 2e-5), config={"num_classes": 4})).is_silent


def test_a_rate_on_its_way_down_a_schedule_is_not_called_healthy() -> None:
    losses = noisy(np.concatenate([falling(1100, 4.0, 3.6, 150), flat(400, 3.6)]), 0.01)

    assert Watch("plateau").over(views(losses, lr=np.linspace(1e-3, 1e-4, LONG))).told() == {}


def test_a_loss_that_stands_while_the_accuracy_rises_is_no_standstill() -> None:
    losses = noisy(stuck(), 0.01)

    def run(scores: Float64) -> Watch:
        at = {i: {"loss": 3.6, "accuracy": float(scores[i])} for i in range(25, LONG, 25)}
        return Watch("plateau").over(views(losses, lr=flat(LONG, 1e-3), validations=at))

    assert run(np.linspace(0.2, 0.7, LONG)).is_silent
    assert not run(np.full(LONG, 0.4)).is_silent
    rising = {"accuracy": np.linspace(0.2, 0.7, LONG)}
    assert Watch("plateau").over(views(losses, lr=flat(LONG, 1e-3), metrics=rising)).is_silent


# Gradients that are gone


def test_a_norm_that_sank_to_nothing_is_named() -> None:
    norms = np.maximum(3.0 * np.exp(-np.arange(LONG) / 20), 1e-5)
    last = Watch("plateau").over(views(noisy(stuck(), 0.01), norms)).only().last

    assert lacks(last.summary, "gradient norm vanished") == []
    assert last.values["grad_norm"] < 1e-3


# A rate that decayed away


def test_a_rate_that_has_been_next_to_nothing_for_a_quarter_of_the_run_is_named() -> None:
    losses = noisy(falling(LONG, 4.0, 1.0, 60), 0.01)
    last = Watch("plateau").over(views(losses, lr=rate(400, 0.005))).only().last

    assert lacks(last.summary, "0.5 % of its peak") == []


def test_a_rate_that_decayed_to_a_fiftieth_is_fine() -> None:
    losses = noisy(falling(LONG, 4.0, 1.0, 60), 0.01)

    assert Watch("plateau").over(views(losses, lr=rate(400, 0.02))).is_silent


def test_a_schedule_that_ends_with_the_run_is_fine() -> None:
    losses = noisy(falling(LONG, 4.0, 1.0, 60), 0.01)

    assert Watch("plateau").over(views(losses, lr=cosine(LONG, 1e-3, 50, 0.0))).is_silent


# Recovery


def test_is_over_when_the_loss_falls_again() -> None:
    losses = noisy(np.concatenate([stuck(600), falling(900, 3.6, 1.0)]), 0.01)
    episode = Watch("plateau").over(views(losses)).only()

    assert episode.last.state == "resolved"
    assert 600 < episode.last.step < 900


@pytest.mark.parametrize("seed", seeds(5))
def test_does_not_come_and_go_while_the_loss_stands(seed: int) -> None:
    watched = Watch("plateau").over(views(noisy(stuck(3000), 0.08, seed=seed)))

    assert len(watched.episodes) <= 1


def test_stands_to_the_end_of_the_budget_and_not_beyond() -> None:
    run = views(noisy(stuck(), 0.01), config={"total_steps": LONG})

    episode = Watch("plateau").over(run).only()
    assert episode.last.state == "resolved"
    assert episode.last.step > 0.9 * LONG


# Look-alikes


def test_a_run_that_never_fell_is_another_rules() -> None:
    assert Watch("plateau").over(views(noisy(flat(LONG), 0.02))).is_silent


def test_a_converged_run_is_fine_however_long_it_stands() -> None:
    assert Watch("plateau").over(views(noisy(falling(6000, 4.0, 0.5, 100), 0.02), lr=flat(6000, 1e-3))).is_silent


def test_slow_but_real_progress_is_no_plateau() -> None:
    """One hundredth in a thousand steps, with noise twice as large."""
    losses = noisy(4.0 * (1.0 - 1e-5 * np.arange(4000)), 0.02)

    assert Watch("plateau").over(views(losses, lr=flat(4000, 1e-3))).told() == {}


def test_a_flat_loss_in_a_long_warm_up_is_waited_for() -> None:
    losses = noisy(np.concatenate([stuck(900), falling(600, 3.6, 1.0)]), 0.005)

    assert Watch("plateau").over(views(losses, lr=cosine(LONG, 1e-3, 950))).is_silent


@pytest.mark.parametrize("seed", seeds(3))
@pytest.mark.parametrize("noise", [0.02, 0.3])
def test_a_long_noisy_healthy_run_is_not_told(seed: int, noise: float) -> None:
    watched = Watch("plateau").over(views(noisy(power_law(3000), noise, seed=seed), lr=cosine(3000)))

    assert watched.is_silent


@pytest.mark.parametrize("kind", ["data_switch", "lr_restart"])
def test_a_declared_change_begins_anew(kind: str) -> None:
    watched = Watch("plateau").over(views(noisy(stuck(), 0.01), declared={800: kind}))

    assert watched.only().last.step == 800


# Blindness and restarts


def test_a_converged_run_is_not_near_its_beginning_after_a_restart_of_the_daemon() -> None:
    run = views(noisy(np.concatenate([falling(1000, 4.0, 0.32, 80), falling(LONG, 0.32, 0.3, 50)]), 0.01))
    watched = Watch("plateau").over(run, steps=1000)
    assert watched.is_silent

    assert watched.restarted().over(run).is_silent
    alone = views(noisy(falling(LONG, 0.32, 0.3, 50), 0.01))
    assert not Watch("plateau").over(alone).is_silent, "and from its beginning it is reported"


def test_a_run_near_chance_is_told_also_where_its_beginning_was_not_seen() -> None:
    run = views(noisy(falling(LONG, 2.3, 2.0, 50), 0.005), config={"num_classes": 10})

    assert not Watch("plateau").over(itertools.islice(run, 500, None)).is_silent


def test_abstains_without_a_loss() -> None:
    assert Watch("plateau").over(views(stuck(), visible=frozenset({"gradients"}))).is_silent


def test_without_rate_and_norm_the_loss_alone_is_judged() -> None:
    assert Watch("plateau").over(views(noisy(stuck(), 0.01))).only().last.values["level"] == pytest.approx(
        3.6, rel=0.02
    )


def test_goes_on_with_the_same_onset_after_a_restart() -> None:
    run = views(noisy(stuck(), 0.01), lr=flat(LONG, 1e-3))
    watched = Watch("plateau").over(run, steps=600)
    onset = watched.only().first.onset_step

    watched.restarted().over(run)

    assert watched.only().last.onset_step == onset
    assert watched.only().is_open


def test_a_fall_from_an_odd_first_batch_to_chance_is_no_improvement() -> None:
    """What never fell below chance is not_learning's, whatever the first losses were."""
    at_chance = noisy(np.concatenate([flat(5, 1.72), flat(600, 1.6)]), 0.01)

    assert Watch("plateau").over(views(at_chance, lr=np.full(605, 0.01), config={"num_classes": 5})).is_silent
