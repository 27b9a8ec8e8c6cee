"""gradient_oscillation: a norm that alternates from step to step, and all noise that only looks like it."""

import numpy as np
import pytest

from support.curves import Float64, Watch, falling, flat, noisy, views
from support.summaries import lacks

STEPS = 800


def watch(norms: Float64, **about: object) -> Watch:
    return Watch("gradient_oscillation").over(views(noisy(falling(len(norms)), 0.02), norms, **about))  # type: ignore[arg-type]


def alternating(share: float, steps: int = STEPS, noise: float = 0.1) -> Float64:
    """A norm of 1 that is this share higher and lower in turn."""
    return noisy(1.0 + share * (-1.0) ** np.arange(steps), noise, seed=3)


def test_a_norm_that_alternates_is_reported_once_it_lasts() -> None:
    episode = watch(alternating(0.5)).only()
    assert (episode.severity, episode.is_open) == ("warning", True)
    assert episode.last.values["correlation"] < -0.8
    assert lacks(episode.last.summary, "alternates from step to step, steady") == []


@pytest.mark.parametrize("share", [0.0, 0.1, 0.15])
def test_small_swings_are_none(share: float) -> None:
    assert watch(alternating(share)).is_silent


def test_growing_swings_are_called_so() -> None:
    at = np.arange(STEPS)
    norms = np.exp(0.002 * np.exp(at / 130) * (-1.0) ** at) * noisy(np.ones(STEPS), 0.001)
    assert "growing" in watch(norms).only().first.summary


@pytest.mark.parametrize("noise", [0.05, 0.3, 0.8])
def test_independent_noise_is_none_however_large(noise: float) -> None:
    scatter = np.random.default_rng(7).normal(0.0, noise, 4000)
    assert watch(np.exp(scatter)).is_silent


def test_waves_of_sorted_data_and_single_spikes_are_none() -> None:
    assert watch(noisy(1.0 + 0.5 * np.sin(np.arange(STEPS) / 5), 0.05)).is_silent
    spiky = noisy(flat(STEPS, 1.0), 0.1)
    spiky[::40] = 20.0
    assert watch(spiky).is_silent


def test_it_ends_when_the_norm_is_calm_again_also_in_a_restarted_daemon() -> None:
    calm = noisy(flat(1500, 1.0), 0.1, seed=5)
    run = views(flat(2300), np.concatenate([alternating(0.5), calm]))
    watched = Watch("gradient_oscillation").over(run, steps=STEPS)
    assert watched.only().is_open
    assert watched.restarted().over(run).only().last.state == "resolved"


def test_abstains_where_no_norm_is_taken() -> None:
    assert Watch("gradient_oscillation").over(views(flat(STEPS))).is_silent
