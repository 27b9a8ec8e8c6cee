"""lr_too_low: updates that are next to nothing at a rate near its peak."""

import numpy as np
import pytest

from caboose_wire import Layer
from support.curves import Float64, Watch, cosine, falling, flat, noisy, views

STEPS = 600
EVERY = 100


def watch(*ratios: float, lr: Float64 | None = None, **about: object) -> Watch:
    """The update-to-weight ratio on every hundredth step."""
    at = {EVERY * (i + 1): ratio for i, ratio in enumerate(ratios)}
    rates = flat(STEPS, 1e-3) if lr is None else lr
    return Watch("lr_too_low").over(views(noisy(falling(STEPS), 0.02), lr=rates, updates=at, **about))


# The threshold


def test_updates_of_a_millionth_are_not_told_and_smaller_ones_are() -> None:
    assert watch(*[1.1e-6] * 5).is_silent

    episode = watch(*[0.9e-6] * 5).only()
    assert (episode.severity, episode.first.phase, episode.is_open) == ("warning", "update", True)
    assert episode.first.summary == (
        "the typical weight matrix moves by 9e-07 of itself in a step, at a learning rate of 0.001: nothing can be"
        " learned at this pace"
    )


def test_three_sampled_steps_in_a_row_are_needed_and_the_first_is_the_onset() -> None:
    assert watch(1e-7, 1e-7, 1e-3, 1e-7, 1e-7).is_silent

    first = watch(1e-3, 1e-7, 1e-7, 1e-7).only().first
    assert (first.step, first.onset_step) == (4 * EVERY, 2 * EVERY)


def test_a_finding_stands_at_every_step_until_a_sampled_one_says_otherwise() -> None:
    episode = watch(*[1e-7] * 4, 1e-3).only()

    assert episode.num_findings == 2 * EVERY + 1
    assert (episode.last.state, episode.last.summary) == ("resolved", "updates are 0.001 of the weights again")


def test_its_thresholds_can_be_configured() -> None:
    at = {EVERY * (i + 1): 1e-7 for i in range(5)}

    def told(**thresholds: object) -> bool:
        run = views(flat(STEPS), lr=np.linspace(1e-3, 5e-4, STEPS), updates=at)
        return not Watch("lr_too_low", **thresholds).over(run).is_silent

    assert told()
    assert not told(min_update=1e-8)
    assert not told(samples=6)
    assert not told(near_peak=0.99)


# Look-alikes


def test_small_steps_at_the_end_of_a_schedule_are_the_plan() -> None:
    rates = np.where(np.arange(STEPS) < 50, 1e-3, 5e-5)

    assert watch(*[1e-7] * 5, lr=rates).is_silent


def test_small_steps_in_a_warm_up_are_the_plan() -> None:
    assert watch(*[1e-7] * 5, lr=cosine(STEPS, 1e-3, STEPS)).is_silent


def test_tensors_that_say_little_are_left_out() -> None:
    layers = (
        Layer(name="blocks.0.weight", numel=4096, kind="Linear"),
        Layer(name="blocks.0.bias", numel=512, kind="Linear"),
        Layer(name="norm.weight", numel=512, kind="LayerNorm"),
    )

    def told(ratios: tuple[float, ...]) -> bool:
        at = {EVERY * (i + 1): ratios for i in range(5)}
        run = views(flat(STEPS), lr=flat(STEPS, 1e-3), updates=at, layers=layers)
        return not Watch("lr_too_low").over(run).is_silent

    assert not told((1e-3, 0.0, 0.0))
    assert told((1e-8, 1.0, 1.0))


@pytest.mark.parametrize("seed", range(3))
def test_a_long_healthy_run_is_not_told(seed: int) -> None:
    ratios = 1e-3 * np.exp(np.random.default_rng(seed).standard_normal(60))
    at = {50 * (i + 1): float(ratio) for i, ratio in enumerate(ratios)}

    run = views(noisy(falling(3100), 0.05, seed=seed), lr=cosine(3100), updates=at)
    assert Watch("lr_too_low").over(run).is_silent


# Blindness and restarts


@pytest.mark.parametrize("missing", ["weights", "lr"])
def test_abstains_without_a_look_at_weights_and_rate(missing: str) -> None:
    assert watch(*[1e-7] * 5, visible=frozenset({"loss", "lr", "weights"}) - {missing}).is_silent


def test_steps_on_which_nobody_looked_say_nothing() -> None:
    assert watch().is_silent
    assert watch(*[-1.0] * 5).is_silent, "no matrix had anything to show"


def test_goes_on_with_the_same_onset_after_a_restart_and_can_end() -> None:
    at = {EVERY * (i + 1): 1e-7 if i < 4 else 1e-3 for i in range(5)}
    run = views(flat(STEPS), lr=flat(STEPS, 1e-3), updates=at)
    watched = Watch("lr_too_low").over(run, steps=350).restarted()
    assert watched.over(run, steps=100).only().is_open

    episode = watched.over(run).only()
    assert (episode.last.onset_step, episode.last.step, episode.last.state) == (EVERY, 5 * EVERY, "resolved")
