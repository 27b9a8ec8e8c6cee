"""divergence: a loss that has left its basin and stays away, told apart from spikes, noise and bumps."""

import numpy as np
import pytest

from support.curves import Float64, Watch, cosine, falling, flat, noisy, power_law, views
from support.scenario import NAN, heavy_tailed
from support.seeds import seeds
from support.summaries import lacks

RECENT = 9
PERSIST = 20
CRITICAL = 100


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
    assert Watch("divergence", critical_ratio=3.0).over(views(lifted(2.5, 200))).told() == {"divergence": "warning"}
    assert Watch("divergence", critical_steps=300).over(views(lifted(2.5, 200))).told() == {"divergence": "warning"}
    assert Watch("divergence", critical_share=0.5).over(views(relearned(0.4, rises=True))).told() == WARNED


# Severity


WARNED = {"divergence": "warning"}
PAGED = {"divergence": "critical"}


def relearned(share: float, *, rises: bool, steps: int = 300) -> Float64:
    """A run that came from 5.0 to 1.0, and lost this share of that: little by little, or at once."""
    away = np.linspace(0.0, 4.0 * share, steps) if rises else flat(steps, 4.0 * share)
    return noisy(np.concatenate([falling(600, 5.0, 1.0, 60), 1.0 + away]), 0.01)


def test_a_run_that_has_learned_nothing_pages_when_it_stays_at_twice_its_level() -> None:
    assert Watch("divergence").over(views(lifted(1.9, 300))).told() == WARNED
    assert Watch("divergence").over(views(lifted(2.1, CRITICAL + RECENT // 2 - 1))).told() == WARNED

    episode = Watch("divergence").over(views(lifted(2.1, CRITICAL + RECENT))).only()
    assert episode.severity == "critical"
    assert episode.last.state == "diverging"
    assert lacks(episode.last.summary, "against 1.994 before step 304") == []


def test_a_run_that_loses_a_good_share_of_what_it_gained_and_rises_on_pages_at_once() -> None:
    assert Watch("divergence").over(views(relearned(0.2, rises=True))).told() == WARNED
    assert Watch("divergence").over(views(relearned(0.4, rises=True))).told() == PAGED


def test_a_run_that_lost_a_share_and_stands_pages_only_once_it_is_back_at_its_start() -> None:
    assert Watch("divergence").over(views(relearned(0.8, rises=False))).told() == WARNED
    assert Watch("divergence").over(views(relearned(1.1, rises=False, steps=CRITICAL))).told() == WARNED
    assert Watch("divergence").over(views(relearned(1.1, rises=False))).told() == PAGED


def test_back_at_chance_is_back_at_the_start() -> None:
    losses = relearned(0.5, rises=False)  # at 3.0, of the 5.0 that it began with

    assert Watch("divergence").over(views(losses, config={"num_classes": 19})).told() == PAGED
    assert Watch("divergence").over(views(losses, config={"num_classes": 50})).told() == WARNED


@pytest.mark.parametrize("shift", [0.0, -3000.0])
def test_the_verdict_on_a_log_likelihood_is_that_on_the_same_curve_above_zero(shift: float) -> None:
    """From 4,500 to 1,500, with a noise of 3; and the same below zero."""
    at = np.arange(2000)
    base = 3000 * np.exp(-at / 150) + 1500 + 3 * np.random.default_rng(0).standard_normal(2000) + shift

    assert Watch("divergence").over(views(base + 15.0 * ((at > 1500) & (at < 1560)))).is_silent, "a bump of 1 %"
    assert Watch("divergence").over(views(base + 900.0 * (at > 1500))).told() == WARNED
    assert Watch("divergence").over(views(base + np.maximum(0, 6.0 * (at - 1500)))).told() == PAGED
    assert Watch("divergence").over(views(base + 3100.0 * (at > 1500))).told() == PAGED


def test_next_to_nothing_of_what_was_gained_never_pages() -> None:
    """From 2.3 to a thousandth, and then at two and a half: far above by ratio, and hardly any of what was gained."""
    at = np.arange(2500)

    def risen(by: float) -> Watch:
        return Watch("divergence").over(views(noisy(2.3 * np.exp(-at / 150) + 1e-3 + by * (at > 1800), 0.1)))

    assert risen(1.5e-3).is_silent
    assert risen(5e-2).told() == WARNED


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

    assert episode.last.state == "resolved"
    assert episode.last.step == 400 + RECENT // 2 + PERSIST - 1


def test_a_second_divergence_is_a_second_episode() -> None:
    losses = np.concatenate([flat(300), flat(100, 4.0), flat(100), flat(100, 4.0)])

    assert len(Watch("divergence").over(views(noisy(losses, 0.01))).episodes) == 2


# Runs that come back by themselves


def waves(*heights: float, before: int = 1000) -> Float64:
    """A run at 1.0 that rises by so much, each time for sixty steps, and comes back."""
    parts = [flat(before, 1.0)]
    for height in heights:
        parts += [1.0 + height * np.sin(np.pi * np.arange(60) / 60), flat(100, 1.0)]
    return noisy(np.concatenate(parts), 0.01)


def test_a_run_that_came_back_three_times_is_not_told_of_the_next() -> None:
    assert len(Watch("divergence").over(views(waves(*[1.0] * 3))).episodes) == 3
    watched = Watch("divergence").over(views(waves(*[1.0] * 9)))

    assert len(watched.episodes) == 3
    assert watched.told() == WARNED
    assert [episode.last.state for episode in watched.episodes] == ["resolved"] * 3


def test_what_is_higher_or_longer_than_what_it_came_back_from_is_told() -> None:
    healed = waves(*[1.0] * 6)

    assert len(Watch("divergence").over(views(np.concatenate([healed, waves(1.4, before=0)]))).episodes) == 3
    assert len(Watch("divergence").over(views(np.concatenate([healed, waves(1.7, before=0)]))).episodes) == 4
    episode = Watch("divergence").over(views(np.concatenate([healed, noisy(flat(400, 2.1), 0.01)]))).episodes[-1]
    assert (episode.is_open, episode.severity) == (True, "critical")


def test_storms_of_the_first_quarter_do_not_excuse_later_ones() -> None:
    early = waves(*[1.0] * 4)
    later = waves(1.0, before=3 * len(early))

    assert len(Watch("divergence").over(views(early)).episodes) == 3
    assert len(Watch("divergence").over(views(np.concatenate([early, later]))).episodes) == 4


# Look-alikes


@pytest.mark.parametrize("seed", seeds(3))
def test_a_loss_that_rises_from_the_beginning_has_no_basin_to_leave(seed: int) -> None:
    """As that of a model that makes its own targets does while they grow."""
    curve = 0.01 + 0.5 * (1 - np.exp(-np.arange(2500) / 800))

    assert "critical" not in Watch("divergence").over(views(noisy(curve, 0.2, seed=seed))).told().values()


def test_a_spike_that_heals_is_no_divergence() -> None:
    losses = np.concatenate([flat(300), falling(300, 20.0, 2.0, 5)])

    assert Watch("divergence").over(views(noisy(losses, 0.02))).is_silent


def test_a_warm_up_bump_is_no_divergence() -> None:
    """The loss rises above its first values while the rate is warmed up, and then falls."""
    at = np.arange(1000)
    losses = falling(1000, 8.0, 2.0, 200) + 4.0 * np.exp(-(((at - 12) / 8) ** 2))

    assert Watch("divergence").over(views(noisy(losses, 0.02), lr=cosine(1000, 1e-3, 100))).is_silent


@pytest.mark.parametrize("seed", seeds(3))
def test_isolated_outliers_are_no_divergence(seed: int) -> None:
    losses = noisy(flat(3000), 0.05, seed=seed, scatter=heavy_tailed)

    assert Watch("divergence").over(views(losses)).is_silent


@pytest.mark.parametrize("seed", seeds(3))
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
    run = views(noisy(np.concatenate([flat(300), flat(300, 4.2), flat(100)]), 0.01))
    watched = Watch("divergence").over(run, steps=450)
    onset = watched.only().first.onset_step

    episode = watched.restarted().over(run).only()

    assert episode.last.onset_step == onset
    assert episode.severity == "critical"
    assert episode.last.state == "resolved"
    assert episode.last.values["best"] == pytest.approx(2.0, rel=0.02)


# Downwards


def test_a_loss_that_runs_to_minus_infinity_is_critical_and_one_that_has_a_least_value_is_not() -> None:
    """A likelihood whose sign was forgotten, beside a similarity that comes close to -1 and a density that sharpens."""
    away = Watch("divergence").over(views(-1.6 * 1.02 ** np.arange(400.0)))
    episode = away.only()
    assert (episode.severity, episode.first.onset_step) == ("critical", 0)
    assert lacks(episode.first.summary, "minus infinity", "x its first size") == []

    assert Watch("divergence").over(views(-1.0 + 0.99 * 0.98 ** np.arange(400.0))).is_silent
    assert Watch("divergence").over(views(40.0 - 60.0 * (1.0 - 0.99 ** np.arange(400.0)))).is_silent
