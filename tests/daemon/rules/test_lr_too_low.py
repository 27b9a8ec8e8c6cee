"""lr_too_low: updates that are next to nothing at a rate near its peak."""

import numpy as np
import pytest

from caboose_wire import Layer
from support.curves import Float64, Watch, cosine, falling, flat, noisy, views
from support.seeds import seeds
from support.summaries import lacks

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
    assert lacks(episode.first.summary, "9e-07", "limit 1e-06", "learning rate 0.001") == []


def slow(fall: float, *, ratio: float = 5e-6, noise: float = 0.02, steps: int = 900, **about: object) -> Watch:
    """Updates of this size, and a loss that falls by this share in a thousand steps."""
    losses = noisy(2.3 * (1.0 - fall * np.arange(steps) / 1000), noise)
    at = dict.fromkeys(range(0, steps, EVERY), ratio)
    return Watch("lr_too_low").over(views(losses, lr=about.pop("lr", 1e-6), updates=at, **about))


def test_updates_up_to_ten_times_that_are_told_where_the_loss_hardly_falls() -> None:
    assert slow(0.0, ratio=1.1e-5).is_silent
    assert slow(0.04).is_silent, "fine-tuning that makes progress"

    for fall in (0.0, 0.005):
        first = slow(fall).only().first
        assert (first.onset_step, first.step // EVERY) == (0, 4), "as soon as three hundred steps show it"
        assert lacks(first.summary, "5e-06", "limit 1e-05", "learning rate 1e-06") == []


def test_a_loss_too_noisy_to_tell_is_waited_for() -> None:
    assert slow(0.0, noise=0.3).is_silent
    assert not slow(0.0, noise=0.3, steps=20_000).is_silent


def test_is_over_when_the_loss_falls_at_last() -> None:
    losses = noisy(np.concatenate([flat(700, 2.3), np.linspace(2.3, 1.5, 1300)]), 0.02)
    at = dict.fromkeys(range(0, 2000, EVERY), 5e-6)
    episode = Watch("lr_too_low").over(views(losses, lr=1e-6, updates=at)).only()

    assert (episode.last.state, episode.last.values["update_ratio"]) == ("resolved", pytest.approx(5e-6))


@pytest.mark.parametrize("ratio", [5e-6, 1e-8])
def test_gradients_that_were_there_and_are_gone_are_not_for_want_of_a_rate(ratio: float) -> None:
    norms = np.concatenate([flat(50, 3.0), flat(850, 0.1)])

    assert slow(0.0, ratio=ratio, norms=norms).is_silent
    assert not slow(0.0, ratio=ratio, norms=flat(900, 0.1)).is_silent


def test_small_updates_of_a_warm_up_or_at_the_end_of_a_schedule_are_the_plan() -> None:
    assert slow(0.0, lr=np.linspace(1e-9, 1e-6, 900)).is_silent
    assert slow(0.0, lr=np.concatenate([flat(300, 1e-3), flat(600, 1e-6)])).is_silent


def test_three_sampled_steps_in_a_row_are_needed_and_the_first_is_the_onset() -> None:
    assert watch(1e-7, 1e-7, 1e-3, 1e-7, 1e-7).is_silent

    first = watch(1e-5, 1e-7, 1e-7, 1e-7).only().first
    assert (first.step, first.onset_step) == (4 * EVERY, 2 * EVERY)


def test_a_finding_stands_at_every_step_until_a_sampled_one_says_otherwise() -> None:
    episode = watch(*[1e-7] * 4, 1e-3).only()

    assert episode.num_findings == 2 * EVERY + 1
    assert (episode.last.state, episode.last.values["update_ratio"]) == ("resolved", pytest.approx(1e-3))


def test_its_thresholds_can_be_configured() -> None:
    at = {EVERY * (i + 1): 1e-7 for i in range(5)}

    def told(**thresholds: object) -> bool:
        run = views(flat(STEPS), lr=np.linspace(1e-3, 5e-4, STEPS), updates=at)
        return not Watch("lr_too_low", **thresholds).over(run).is_silent

    assert told()
    assert not told(min_update=1e-8, slow_update=1e-8)
    assert told(min_update=1e-8)
    assert not told(min_update=1e-8, slow_steps=700)
    assert not told(samples=6)
    assert told(slow_fall=1e-9)
    assert not told(near_peak=0.99)


# Look-alikes


def test_small_steps_at_the_end_of_a_schedule_are_the_plan() -> None:
    rates = np.where(np.arange(STEPS) < 50, 1e-3, 5e-5)

    assert watch(*[1e-7] * 5, lr=rates).is_silent


def test_a_run_that_has_moved_its_weights_lost_its_gradients_and_not_its_rate() -> None:
    assert watch(2e-4, 1e-7, 1e-7, 1e-7, 1e-7).is_silent
    assert not watch(0.5e-4, 1e-7, 1e-7, 1e-7, 1e-7).is_silent


def test_weights_that_stand_without_a_gradient_are_not_told() -> None:
    assert watch(*[0.0] * 5, norms=flat(STEPS, 0.0)).is_silent
    assert not watch(*[0.0] * 5, norms=flat(STEPS, 0.1)).is_silent


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


@pytest.mark.parametrize("seed", seeds(3))
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
