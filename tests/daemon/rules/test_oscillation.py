"""oscillation: steps that answer each other, told apart from batches that do not."""

import numpy as np
import pytest

from support.curves import Float64, Watch, cosine, falling, flat, noisy, power_law, views
from support.scenario import NAN, heavy_tailed
from support.seeds import seeds
from support.summaries import lacks

STEPS = 1200


def alternating(amplitude: float, steps: int = STEPS, level: float = 2.0) -> Float64:
    """High, low, high, low."""
    return level * (1.0 + amplitude * (-1.0) ** np.arange(steps))


def waves(amplitude: float, period: int = 12, steps: int = STEPS) -> Float64:
    return 2.0 * (1.0 + amplitude * np.sin(2 * np.pi * np.arange(steps) / period))


# The threshold


def test_an_alternation_of_a_fifth_is_told_and_one_of_a_twentieth_is_not() -> None:
    watched = Watch("oscillation").over(views(noisy(alternating(0.2), 0.02)))

    assert watched.only().severity == "warning"
    assert watched.only().first.values["correlation"] < 0
    assert lacks(watched.only().first.summary, "from step to step", "swings of 2", "correlation -0.") == []
    assert Watch("oscillation").over(views(noisy(alternating(0.05), 0.02))).is_silent


def test_waves_are_told_as_waves() -> None:
    watched = Watch("oscillation").over(views(noisy(waves(0.4), 0.02)))

    assert watched.only().first.values["correlation"] > 0


def test_speaks_only_once_it_has_seen_enough_and_it_has_lasted() -> None:
    """Twenty muted steps, two hundred to measure over, two hundred that it has to hold."""
    run = views(noisy(alternating(0.3), 0.02))
    watched = Watch("oscillation").over(run, steps=419)
    assert watched.is_silent

    first = watched.over(run, steps=5).only().first
    assert first.step - first.onset_step == 199


def test_its_thresholds_can_be_configured() -> None:
    run = noisy(alternating(0.2), 0.02)

    assert Watch("oscillation", amplitude=0.3).over(views(run)).is_silent
    assert Watch("oscillation", persist_steps=2000).over(views(run)).is_silent
    assert Watch("oscillation", min_swings=500).over(views(run)).is_silent
    assert Watch("oscillation", correlation=0.999).over(views(noisy(alternating(0.2), 0.1))).is_silent


def test_a_loss_below_zero_is_judged_by_its_plain_swings() -> None:
    assert not Watch("oscillation").over(views(-noisy(alternating(0.3), 0.02))).is_silent


# Recovery


def test_is_over_when_the_swings_have_stopped_for_a_while() -> None:
    losses = noisy(np.concatenate([alternating(0.3, 800), flat(1200)]), 0.02)
    episode = Watch("oscillation").over(views(losses)).only()

    assert episode.last.state == "resolved"
    assert 1000 < episode.last.step < 1500


def test_swings_that_shrink_by_themselves_are_not_told() -> None:
    losses = 2.0 * (1.0 + 0.4 * np.exp(-np.arange(STEPS) / 60) * (-1.0) ** np.arange(STEPS))

    assert Watch("oscillation").over(views(noisy(losses, 0.02))).is_silent


# Look-alikes


@pytest.mark.parametrize("seed", seeds(3))
@pytest.mark.parametrize("noise", [0.1, 0.3])
def test_noise_of_independent_batches_is_not_told_however_large(seed: int, noise: float) -> None:
    assert Watch("oscillation").over(views(noisy(flat(3000), noise, seed=seed))).is_silent


@pytest.mark.parametrize("seed", seeds(3))
def test_heavy_tails_are_not_told(seed: int) -> None:
    losses = np.maximum(noisy(flat(3000), 0.1, seed=seed, scatter=heavy_tailed), 0.1)

    assert Watch("oscillation").over(views(losses)).is_silent


@pytest.mark.parametrize("seed", seeds(3))
def test_a_loss_that_drifts_slowly_is_not_told(seed: int) -> None:
    """A random walk is tied to its neighbours too, but seldom comes back."""
    walk = np.cumsum(np.random.default_rng(seed).standard_normal(3000))

    assert Watch("oscillation").over(views(2.0 * np.exp(0.005 * walk))).is_silent


@pytest.mark.parametrize("seed", seeds(5))
@pytest.mark.parametrize("rate", [0.003, 0.01, 0.03])
def test_a_loss_that_falls_fast_is_not_told(rate: float, seed: int) -> None:
    """Batch noise about a loss that sinks by decades, steeply at first: it never swings."""
    steps = np.arange(STEPS)
    for fall in (rate * steps, 6.0 * (1.0 - np.exp(-rate * steps)) + 0.001 * steps):
        assert Watch("oscillation").over(views(noisy(2.3 * np.exp(-fall), 0.25, seed=seed))).is_silent


def test_swings_of_a_loss_that_falls_fast_are_told() -> None:
    steps = np.arange(STEPS)

    watched = Watch("oscillation").over(views(noisy(alternating(0.3) * np.exp(-0.01 * steps), 0.02)))
    assert watched.only().is_open


def test_the_saw_teeth_of_epochs_are_not_told() -> None:
    """A step down at every epoch's end is no swing."""
    losses = np.concatenate([falling(200, 2.0 * 0.8**i, 1.9 * 0.8**i, 100) for i in range(10)])

    assert Watch("oscillation").over(views(noisy(losses, 0.02))).is_silent


@pytest.mark.parametrize("noise", [0.02, 0.2])
def test_a_long_noisy_healthy_run_is_not_told(noise: float) -> None:
    assert Watch("oscillation").over(views(noisy(power_law(4000), noise), lr=cosine(4000))).is_silent


def test_swings_in_a_warm_up_are_waited_for() -> None:
    losses = np.concatenate([alternating(0.3, 600), flat(600)])

    assert Watch("oscillation").over(views(noisy(losses, 0.02), lr=cosine(1200, 1e-3, 610))).is_silent


@pytest.mark.parametrize("kind", ["data_switch", "batch_ramp", "resume"])
def test_a_declared_change_begins_anew(kind: str) -> None:
    watched = Watch("oscillation").over(views(noisy(alternating(0.3), 0.02), declared={600: kind}))

    assert [episode.first.onset_step >= 600 for episode in watched.episodes] == [False, True]
    assert watched.episodes[0].last.step == 600


# Blindness and restarts


def test_abstains_without_a_loss() -> None:
    assert Watch("oscillation").over(views(alternating(0.3), visible=frozenset({"gradients"}))).is_silent


def test_losses_that_are_not_numbers_are_left_out() -> None:
    losses = alternating(0.3)
    losses[::50] = NAN

    assert not Watch("oscillation").over(views(losses)).is_silent


def test_goes_on_with_the_same_onset_after_a_restart_and_ends_when_it_is_calm() -> None:
    run = views(noisy(np.concatenate([alternating(0.3, 800), flat(1200)]), 0.02))
    watched = Watch("oscillation").over(run, steps=500)
    onset = watched.only().first.onset_step

    episode = watched.restarted().over(run).only()

    assert (episode.last.onset_step, episode.last.state) == (onset, "resolved")


# The gradient norm


def of_norms(norms: Float64, **about: object) -> Watch:
    losses = noisy(falling(len(norms), 4.0, 1.5, 300), 0.01)
    return Watch("oscillation").over(views(losses, norms, **about))  # type: ignore[arg-type]


def test_a_norm_that_swings_while_the_loss_does_not_is_a_note() -> None:
    at = np.arange(900)
    for shape in ((-1.0) ** at, np.sin(at / 2)):
        episode = of_norms(noisy(1.0 + 0.7 * shape, 0.05)).only()
        assert (episode.severity, episode.is_open) == ("info", True)
        assert lacks(episode.last.summary, "gradient norm oscillates, steady") == []


@pytest.mark.parametrize("noise", [0.1, 0.5, 1.0])
def test_noise_of_the_norm_is_no_swing_however_large(noise: float) -> None:
    assert of_norms(np.exp(np.random.default_rng(7).normal(0.0, noise, 3000))).is_silent


def test_small_swings_slow_drifts_and_spikes_of_the_norm_are_none() -> None:
    at = np.arange(900)
    assert of_norms(noisy(1.0 + 0.2 * (-1.0) ** at, 0.05)).is_silent
    assert of_norms(noisy(1.0 + 0.7 * np.sin(at / 100), 0.05)).is_silent
    spiky = noisy(flat(900, 1.0), 0.1)
    spiky[::40] = 20.0
    assert of_norms(spiky).is_silent


def test_a_note_on_the_norm_ends_when_it_is_calm() -> None:
    at = np.arange(800)
    norms = np.concatenate([1.0 + 0.7 * (-1.0) ** at, noisy(np.ones(1500), 0.1)])
    assert of_norms(norms).only().last.state == "resolved"
