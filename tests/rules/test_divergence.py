"""divergence: a loss that has left its basin and stays away, told apart from spikes, noise and bumps."""

import numpy as np
import pytest

from support.curves import Float64, Watch, cosine, falling, flat, noisy, power_law, views
from support.scenario import NAN, heavy_tailed

RECENT = 9
PERSIST = 20


def lifted(ratio: float, steps: int, *, before: int = 300, noise: float = 0.01) -> Float64:
    """A run at a level of 2.0 that from then on lies at this many times its level."""
    return noisy(np.concatenate([flat(before), flat(steps, 2.0 * ratio)]), noise)


# The threshold


def test_is_silent_up_to_the_ratio_and_speaks_above_it() -> None:
    assert Watch("divergence").over(views(lifted(1.22, 200))).is_silent
    assert not Watch("divergence").over(views(lifted(1.30, 200))).is_silent


def test_is_silent_before_it_has_lasted_and_speaks_then() -> None:
    needed = RECENT // 2 + PERSIST
    assert Watch("divergence").over(views(lifted(1.4, needed - 1))).is_silent

    first = Watch("divergence").over(views(lifted(1.4, needed))).only().first
    assert (first.step, first.onset_step) == (299 + needed, 300 + RECENT // 2)


def test_a_rise_within_the_uncertainty_of_a_noisy_loss_is_not_told() -> None:
    """A third above, but the batches scatter by half of the level."""
    assert Watch("divergence").over(views(lifted(1.3, 300, noise=0.5))).is_silent
    assert not Watch("divergence").over(views(lifted(1.3, 300, noise=0.05))).is_silent


def test_its_thresholds_can_be_configured() -> None:
    assert Watch("divergence", ratio=2.0).over(views(lifted(1.9, 200))).is_silent
    assert Watch("divergence", persist_steps=100).over(views(lifted(1.4, 100))).is_silent
    assert Watch("divergence", errors=200.0).over(views(lifted(1.4, 100))).is_silent
    assert Watch("divergence", critical_ratio=3.0).over(views(lifted(2.5, 100))).told() == {"divergence": "warning"}


# Severity


def test_is_critical_when_it_lies_far_above_and_a_warning_when_it_does_not() -> None:
    assert Watch("divergence").over(views(lifted(1.45, 200))).only().severity == "warning"

    episode = Watch("divergence").over(views(lifted(1.6, 200))).only()
    assert episode.severity == "critical"
    assert episode.last.state == "diverging"
    assert "not coming back" in episode.last.summary


def test_a_loss_on_its_way_back_is_a_warning() -> None:
    losses = np.concatenate([flat(300), falling(60, 8.0, 2.0, 25)])
    episode = Watch("divergence").over(views(noisy(losses, 0.01))).only()

    assert episode.severity == "warning"
    assert episode.last.state == "recovering"


def test_is_never_more_urgent_than_configured() -> None:
    assert Watch("divergence", severity="warning").over(views(lifted(5.0, 200))).only().severity == "warning"


def test_a_slow_divergence_is_found_though_no_single_step_is_high() -> None:
    losses = np.concatenate([falling(500, 4.0, 1.5, 100), 1.5 * 1.002 ** np.arange(1000)])

    assert Watch("loss_spike").over(views(noisy(losses, 0.02))).told() == {}
    assert Watch("divergence").over(views(noisy(losses, 0.02))).told() == {"divergence": "critical"}


def test_what_has_diverged_is_never_learned_as_normal() -> None:
    episode = Watch("divergence").over(views(lifted(3.0, 3000))).only()

    assert episode.is_open
    assert episode.last.values["best"] == pytest.approx(2.0, rel=0.02)


# Recovery


def test_is_over_once_the_loss_is_back_in_its_basin() -> None:
    losses = noisy(np.concatenate([flat(300), flat(100, 4.0), flat(100)]), 0.01)
    episode = Watch("divergence").over(views(losses)).only()

    assert (episode.last.state, episode.last.summary) == ("resolved", "the loss is back in its basin")
    assert episode.last.step == 400 + RECENT // 2 + PERSIST - 1


def test_a_second_divergence_is_a_second_episode() -> None:
    losses = np.concatenate([flat(300), flat(100, 4.0), flat(100), flat(100, 4.0)])

    assert len(Watch("divergence").over(views(noisy(losses, 0.01))).episodes) == 2


# Look-alikes


def test_a_spike_that_heals_is_no_divergence() -> None:
    losses = np.concatenate([flat(300), falling(300, 20.0, 2.0, 5)])

    assert Watch("divergence").over(views(noisy(losses, 0.02))).is_silent


def test_a_warm_up_bump_is_no_divergence() -> None:
    """The loss rises above its first values while the rate is warmed up, and then falls."""
    at = np.arange(1000)
    losses = falling(1000, 8.0, 2.0, 200) + 4.0 * np.exp(-(((at - 12) / 8) ** 2))

    assert Watch("divergence").over(views(noisy(losses, 0.02), lr=cosine(1000, 1e-3, 100))).is_silent


@pytest.mark.parametrize("seed", range(3))
def test_isolated_outliers_are_no_divergence(seed: int) -> None:
    losses = noisy(flat(3000), 0.05, seed=seed, scatter=heavy_tailed)

    assert Watch("divergence").over(views(losses)).is_silent


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("noise", [0.01, 0.1, 0.3])
def test_a_long_noisy_healthy_run_is_not_told(seed: int, noise: float) -> None:
    assert Watch("divergence").over(views(noisy(power_law(3000), noise, seed=seed))).is_silent


@pytest.mark.parametrize("kind", ["data_switch", "batch_ramp", "resume"])
def test_a_declared_change_begins_a_new_basin(kind: str) -> None:
    assert Watch("divergence").over(views(lifted(3.0, 500), declared={300: kind})).is_silent


# Blindness and restarts


def test_abstains_without_a_loss() -> None:
    assert Watch("divergence").over(views(lifted(3.0, 200), visible=frozenset({"gradients"}))).is_silent


def test_losses_that_are_not_numbers_are_left_to_their_own_rule() -> None:
    losses = noisy(np.concatenate([flat(300), np.full(100, NAN), flat(100)]), 0.01)

    assert Watch("divergence").over(views(losses)).is_silent


def test_goes_on_with_the_same_onset_and_basin_after_a_restart() -> None:
    run = views(noisy(np.concatenate([flat(300), flat(300, 4.0), flat(100)]), 0.01))
    watched = Watch("divergence").over(run, steps=400)
    onset = watched.only().first.onset_step

    episode = watched.restarted().over(run).only()

    assert episode.last.onset_step == onset
    assert episode.severity == "critical"
    assert episode.last.state == "resolved"
    assert episode.last.values["best"] == pytest.approx(2.0, rel=0.02)
