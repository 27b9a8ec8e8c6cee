"""Healthy runs of every common shape, under all rules: nobody is paged, and where nothing is odd nobody is notified."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from support.curves import Float64, Watch, cosine, falling, flat, noisy, power_law, views
from support.scenario import Noise, heavy_tailed, normal, scenario
from support.seeds import seeds

STEPS = 2500
SEEDS = seeds(2)


def norms(seed: int, noise: float = 0.2) -> Float64:
    """Gradient norms that fall at first, and scatter."""
    return noisy_log(0.5 + 2.0 * np.exp(-np.arange(STEPS) / 100), noise, seed + 100)


def noisy_log(curve: Float64, noise: float, seed: int) -> Float64:
    return curve * np.exp(noise * np.random.default_rng(seed).standard_normal(len(curve)))


def validations(curve: Float64, seed: int, *, gap: float = 0.03, every: int = 150) -> dict[int, float]:
    """Evaluations a little above the training loss, with a little scatter."""
    scatter = 1 + 0.005 * np.random.default_rng(seed + 200).standard_normal(len(curve))
    return {i: float(curve[i] * (1 + gap) * scatter[i]) for i in range(every, len(curve), every)}


def updates() -> dict[int, float]:
    """What a healthy optimizer does to the weights, on every hundredth step."""
    return dict.fromkeys(range(0, STEPS, 100), 1e-3)


def language_model(seed: int) -> dict[str, Any]:
    curve = power_law(STEPS)
    return {"losses": noisy(curve, 0.02, seed=seed), "lr": cosine(STEPS), "validations": validations(curve, seed)}


def small_batches(seed: int) -> dict[str, Any]:
    curve = falling(STEPS, 4.0, 1.5, 600)
    return {"losses": noisy(curve, 0.25, seed=seed), "norms": norms(seed, 0.5), "lr": flat(STEPS, 1e-3)}


def heavy_tails(seed: int) -> dict[str, Any]:
    return {"losses": noisy(power_law(STEPS), 0.03, seed=seed, scatter=heavy_tailed), "lr": cosine(STEPS)}


def slow_start(seed: int) -> dict[str, Any]:
    """At chance for 600 steps, at which it gains a hundredth of its level every 200, and then it learns."""
    at = np.arange(STEPS)
    curve = 2.303 * (1 - 5e-5 * np.minimum(at, 600)) - 1.6 / (1 + np.exp(-(at - 900) / 100))
    return {"losses": noisy(curve, 0.002, seed=seed), "lr": flat(STEPS, 1e-3), "config": {"num_classes": 10}}


def fine_tuning(seed: int) -> dict[str, Any]:
    """A language model with 32,000 tokens that begins near its end level."""
    curve = falling(STEPS, 1.35, 1.15, 300)
    return {
        "losses": noisy(curve, 0.08, seed=seed),
        "lr": cosine(STEPS, 2e-5, 100, 0.0),
        "validations": validations(curve, seed),
        "config": {"num_classes": 32000},
    }


def converged(seed: int) -> dict[str, Any]:
    curve = falling(STEPS, 4.0, 0.3, 150)
    return {
        "losses": noisy(curve, 0.05, seed=seed),
        "lr": flat(STEPS, 1e-3),
        "validations": validations(curve, seed, gap=0.2),
    }


def staircase(seed: int) -> dict[str, Any]:
    """The first epoch learns; every later one begins with a step down, because its data were seen before."""
    epoch, within = np.arange(STEPS) // 500, (np.arange(STEPS) % 500) / 500
    curve = np.where(epoch == 0, falling(STEPS, 4.0, 2.2, 80), 0.4 + 1.8 * 0.8**epoch * (1 - 0.05 * within))
    return {"losses": noisy(curve, 0.03, seed=seed), "lr": cosine(STEPS)}


def warm_restarts(seed: int) -> dict[str, Any]:
    """The rate goes back to its peak every 1,000 steps, and the loss up with it for a while."""
    at = np.arange(STEPS)
    bump = 0.15 * np.exp(-(at % 1000) / 60) * (at >= 1000)
    rate = 3e-4 * 0.5 * (1.02 + np.cos(np.pi * (at % 1000) / 1000))
    return {"losses": noisy(falling(STEPS, 3.7, 1.2, 500) + bump, 0.02, seed=seed), "lr": rate}


def outlier_batches(seed: int) -> dict[str, Any]:
    """Three batches in a thousand are odd, each for a step, and the norm with them."""
    losses, hit = noisy(power_law(STEPS), 0.02, seed=seed), np.random.default_rng(seed).random(STEPS) < 0.003
    return {"losses": losses * np.where(hit, 1.6, 1.0), "lr": cosine(STEPS)}


def long_warm_up(seed: int) -> dict[str, Any]:
    """The rate rises from zero for a thousand steps; the loss hardly moves before it is there."""
    at = np.arange(STEPS)
    curve = 2.303 - 1.5 / (1 + np.exp(-(at - 1000) / 120))
    return {"losses": noisy(curve, 0.01, seed=seed), "lr": cosine(STEPS, 1e-3, 1000)}


def likelihood(seed: int) -> dict[str, Any]:
    """A log-likelihood in nats, from 1,500 to -1,500, that wanders by half a hundredth, as a flow's does."""
    at = np.arange(STEPS)
    wander = 8 * np.sin(at / 120) * (at > 800) + 15 * ((at > 1500) & (at < 1560))
    curve = 3000 * np.exp(-at / 150) - 1500 + wander
    evaluated = curve + 20.0
    return {
        "losses": curve + 3 * np.random.default_rng(seed).standard_normal(STEPS),
        "lr": flat(STEPS, 1e-3),
        "validations": {i: float(evaluated[i]) for i in range(150, STEPS, 150)},
    }


def through_zero(seed: int) -> dict[str, Any]:
    """A regression that tells its own variance: from above zero to below it."""
    at = np.arange(STEPS)
    curve = 5 * np.exp(-at / 300) - 2 - 0.3 * np.log1p(at / 500)
    return {"losses": curve + 0.15 * np.random.default_rng(seed).standard_normal(STEPS), "lr": flat(STEPS, 1e-3)}


SHAPES = [
    likelihood,
    through_zero,
    language_model,
    small_batches,
    heavy_tails,
    slow_start,
    fine_tuning,
    converged,
    staircase,
    warm_restarts,
    outlier_batches,
    long_warm_up,
]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__.replace("_", " "))
def test_nobody_is_told_of_a_healthy_run(shape: Any, seed: int) -> None:
    run = {"norms": norms(seed), "updates": updates(), **shape(seed)}

    assert Watch().over(views(**run)).told() == {}


def adversaries(seed: int) -> dict[str, Any]:
    """A generator's loss: no trend, and now and then the other side wins for a while; as a small GAN's was seen to."""
    at, generator = np.arange(STEPS), np.random.default_rng(seed)
    curve = 0.70 + 0.06 * np.exp(-at / 100)
    for k, begins in enumerate(range(150, STEPS, 300)):
        inside = (at >= begins) & (at < begins + 100)
        curve = curve + inside * (0.4, 0.85, 0.8, 0.5)[k % 4] * np.sin(np.pi * (at - begins) / 100)
    return {"losses": curve * (1 + 0.03 * generator.standard_normal(STEPS)), "lr": flat(STEPS, 1e-3)}


def own_targets(seed: int) -> dict[str, Any]:
    """A value network: its targets are made anew every hundred steps, and with them it has as far to go again."""
    at, generator = np.arange(STEPS), np.random.default_rng(seed)
    height = 0.1 + 0.4 * (1 - np.exp(-at / 500))
    curve = 2e-4 + np.where(at < 100, 0.15, height) * np.exp(-(at % 100) / 14)
    return {
        "losses": curve * np.exp(0.2 * generator.standard_normal(STEPS)),
        "norms": noisy_log(np.full(STEPS, 0.5), 0.3, seed),
        "lr": flat(STEPS, 1e-3),
    }


def single_samples(seed: int) -> dict[str, Any]:
    """A linear regression by single samples: squares of normal values, of which the first one is a lucky one."""
    losses = falling(STEPS, 20.0, 0.09, 40) * np.random.default_rng(seed).standard_normal(STEPS) ** 2
    losses[0] = 0.05
    return {"losses": losses, "norms": 2 * np.sqrt(losses), "lr": flat(STEPS, 1e-2)}


@pytest.mark.parametrize("seed", seeds(4))
def test_two_networks_against_each_other_never_page_and_are_told_of_a_few_times(seed: int) -> None:
    watched = Watch().over(views(**{"norms": norms(seed), "updates": updates(), **adversaries(seed)}))

    assert "critical" not in watched.told().values()
    assert len([e for e in watched.episodes if e.rule == "divergence"]) <= 4, "of eight times that it came back"


@pytest.mark.parametrize("seed", seeds(4))
def test_a_model_that_makes_its_own_targets_is_told_of_a_few_times(seed: int) -> None:
    """Its first jumps look like any other spike, and page as such; all 24 would be a page every hundred steps."""
    watched = Watch().over(views(**{"updates": updates(), **own_targets(seed)}))

    assert watched.told()["divergence"] == "warning"
    assert max(Counter(episode.rule for episode in watched.episodes).values()) <= 5
    assert all(episode.first.step < STEPS / 2 for episode in watched.episodes)


@pytest.mark.parametrize("seed", seeds(4))
def test_a_run_by_single_samples_is_at_most_a_ticket_for_an_outlier(seed: int) -> None:
    told = Watch().over(views(**{"updates": updates(), **single_samples(seed)})).told()

    assert set(told) <= {"loss_spike", "gradient_explosion"}
    assert "critical" not in told.values()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_fine_tuning_of_which_nobody_told_the_number_of_classes_is_at_most_a_ticket(seed: int) -> None:
    run = {**fine_tuning(seed), "norms": norms(seed), "config": {}}

    told = Watch().over(views(**run)).told()

    assert set(told) <= {"plateau", "underfitting"}
    assert "critical" not in told.values()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_that_stands_at_chance_before_it_learns_is_a_ticket_that_is_closed(seed: int) -> None:
    at = np.arange(STEPS)
    losses = noisy(2.303 - 1.6 / (1 + np.exp(-(at - 1200) / 100)), 0.02, seed=seed)

    watched = Watch().over(views(losses, norms(seed), lr=flat(STEPS, 1e-3)))

    assert watched.told() == {"not_learning": "warning"}
    assert [episode.last.state for episode in watched.episodes] == ["resolved"]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", ["data_switch", "resume"])
def test_nobody_is_told_of_a_jump_that_was_declared(kind: str, seed: int) -> None:
    losses = noisy(np.concatenate([falling(1500, 4.0, 1.5), falling(STEPS - 1500, 6.0, 2.5)]), 0.05, seed=seed)

    assert Watch().over(views(losses, norms(seed), declared={1500: kind})).told() == {}
    assert "loss_spike" in Watch().over(views(losses, norms(seed))).told(), "and it is reported if it was not declared"


@pytest.mark.parametrize("seed", SEEDS)
def test_nobody_is_told_of_a_batch_ramp(seed: int) -> None:
    """Four times the samples: half the scatter, and another norm."""
    at = np.arange(STEPS)
    losses = noisy(falling(STEPS, 4.0, 1.5, 500), 0.2, seed=seed)
    samples = np.where(at < 1500, 64, 256)
    ramped = noisy_log(np.where(at < 1500, 4.0, 1.0), 0.3, seed)

    assert Watch().over(views(losses, ramped, num_samples=samples)).told() == {}


# Tails


def judged(seed: int, noise: float, scatter: Noise) -> Watch:
    """What the rules say of a falling loss with this scatter, and a gradient norm with three times as much."""
    generator = np.random.default_rng(seed)
    losses = falling(5000, 9.5, 1.5, 400) * (1 + noise * scatter(generator, 5000))
    scattered: NDArray[np.float64] = np.exp(3 * noise * scatter(generator, 5000))
    return Watch().over(views(losses, scattered))


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("seed", seeds(3))
@pytest.mark.parametrize(
    ("noise", "scatter"),
    [
        pytest.param(0.02, normal, id="little noise"),
        pytest.param(0.15, normal, id="much noise"),
        pytest.param(0.005, heavy_tailed, id="heavy tails"),
    ],
)
def test_a_long_noisy_run_raises_nothing_at_all(seed: int, noise: float, scatter: Noise) -> None:
    assert judged(seed, noise, scatter).findings == []


@pytest.mark.parametrize("seed", seeds(3))
def test_single_outliers_of_very_heavy_tails_never_page(seed: int) -> None:
    assert set(judged(seed, 0.1, heavy_tailed).told().values()) == {"warning"}


@pytest.mark.long
@pytest.mark.slow
def test_raises_nothing_through_the_whole_core() -> None:
    story = scenario(ranks=2, noise=0.05, falling=2.0, seed=7).healthy(2500)

    assert story.job.num_steps == 2500
    assert story.is_silent
