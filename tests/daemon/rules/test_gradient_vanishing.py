"""gradient_vanishing: the fall towards the input, and the small gradients that are healthy."""

import functools
import math
from typing import Any

import numpy as np
import pytest

from caboose_daemon.rules.gradient_vanishing import GradientVanishing, GradientVanishingConfig
from caboose_wire import Layer
from support.ranks import a_report
from support.scenario import NAN, Scenario
from support.scenario import scenario as of_all_rules

scenario = functools.partial(of_all_rules, about="gradient_vanishing")

DEPTH = 12
LAYERS = tuple(Layer(name=f"net.{i}.weight", numel=10_000, kind="Linear") for i in range(DEPTH))
QUICK = {"gradient_vanishing": GradientVanishingConfig(persist_steps=10)}


def falling(first: float, last: float, num: int = DEPTH) -> list[float]:
    """Norms of layers of 10,000 elements whose gradient per element falls geometrically towards the input."""
    return (100 * np.geomspace(first, last, num)).tolist()


def a_net(first: float, last: float, layers: tuple[Layer, ...] = LAYERS, **settings: Any) -> Scenario:
    norms = falling(first, last, len(layers))
    return scenario(ranks=2, rules=QUICK, layers=layers, **{"norms": norms, "noise": 0.2, **settings})


def test_speaks_when_the_gradient_has_faded_for_as_many_steps_as_it_takes() -> None:
    story = a_net(1e-9, 1e-3)
    assert story.healthy(9).is_silent

    episode = story.healthy(1).only("gradient_vanishing")
    assert (episode.severity, episode.first.step, episode.first.onset_step) == ("warning", 10, 1)
    assert (episode.first.layers, episode.first.phase) == (("net.0.weight",), "backward")
    assert "per element at net.0.weight" in episode.first.summary


def test_stays_one_episode_and_never_pages() -> None:
    episode = a_net(1e-9, 1e-3).healthy(300).only("gradient_vanishing")

    assert (episode.severity, episode.num_findings) == ("warning", 291)


def test_ends_when_the_first_layers_get_a_gradient_again() -> None:
    story = a_net(1e-9, 1e-3).healthy(20).gradients(*falling(1e-4, 1e-3)).healthy(80)

    assert story.only("gradient_vanishing").last.state == "resolved"


@pytest.mark.parametrize(("first", "fires"), [(1e-6, False), (2e-8, True)])
def test_the_gradient_at_the_input_must_be_negligible(first: float, fires: bool) -> None:
    assert a_net(first / 10, 1e-3).healthy(60).is_silent is not fires


def test_a_negligible_update_of_the_first_layers_serves_as_well() -> None:
    still, moving = [1e-8] * 4 + [1e-3] * 8, [1e-4] * DEPTH

    assert a_net(1e-6, 1e-1).sampled(60, update_ratio=moving).is_silent
    assert a_net(1e-6, 1e-1).sampled(60, update_ratio=still).of("gradient_vanishing")


# Look-alikes


def test_a_residual_net_with_small_early_norms_is_healthy() -> None:
    assert a_net(3e-6, 3e-4).healthy(200).is_silent
    assert a_net(1e-8, 1e-6).healthy(200).is_silent  # small everywhere: a large model


def test_a_run_that_converges_shrinks_all_layers_together() -> None:
    story = a_net(1e-6, 1e-2)
    for decade in range(8):
        story.gradients(*falling(1e-6 / 10**decade, 1e-2 / 10**decade)).healthy(40)

    assert story.is_silent


def test_frozen_layers_and_layers_without_gradient_do_not_count() -> None:
    frozen = tuple(Layer(f"net.{i}.weight", 10_000, "Linear", trainable=i >= 6) for i in range(DEPTH))

    assert a_net(1, 1, frozen, norms=[-1.0] * 6 + falling(1e-4, 1e-3, 6)).healthy(60).is_silent
    assert a_net(1, 1, frozen, norms=falling(1e-12, 1e-10, 6) + falling(1e-4, 1e-3, 6)).healthy(60).is_silent


def test_biases_norms_and_embeddings_do_not_count() -> None:
    odd = (
        Layer("embed.weight", 10_000, "Embedding"),
        Layer("pos_embed", 10_000, "ViT"),
        Layer("norm.weight", 100, "LayerNorm"),
        Layer("net.0.bias", 100, "Linear"),
    )

    assert a_net(1, 1, odd + LAYERS, norms=[1e-9] * 4 + falling(1e-4, 1e-3)).healthy(60).is_silent


def test_one_odd_layer_is_no_fall_over_depth() -> None:
    norms = falling(1e-3, 1e-3)
    norms[0:3] = [1e-10] * 3

    assert a_net(1, 1, norms=norms, layers=LAYERS).healthy(60).of("gradient_vanishing") == []


def test_sizes_are_divided_out() -> None:
    layers = tuple(Layer(f"net.{i}.weight", 10 ** (2 + i), "Linear") for i in range(8))
    norms = [1e-5 * math.sqrt(layer.numel) for layer in layers]

    assert a_net(1, 1, layers, norms=norms).healthy(60).is_silent


def test_a_long_noisy_healthy_run_is_silent() -> None:
    assert (
        scenario(ranks=1, layers=LAYERS, norms=falling(1e-5, 1e-4), noise=0.5).healthy(1000).of("gradient_vanishing")
        == []
    )


# Blindness


def test_abstains_without_gradients_and_on_three_layers() -> None:
    assert a_net(1e-9, 1e-3, visible=("loss",)).healthy(60).is_silent
    assert a_net(1e-9, 1e-3, LAYERS[:3]).healthy(60).is_silent


def test_steps_without_norms_do_not_count() -> None:
    story = a_net(1e-9, 1e-3).healthy(9)
    for step in range(10, 30):
        for rank in range(2):
            story.says(rank, a_report(step, arrays={}))
        story.wait(0.5)

    assert story.is_silent


def test_a_gradient_that_is_not_finite_is_not_learned() -> None:
    story = a_net(1e-4, 1e-3).healthy(20).nan_gradient(0, 1, 2, at=21, steps=30, value=NAN)

    assert not story.of("gradient_vanishing")


def test_goes_on_after_a_restart_of_the_daemon() -> None:
    before, after = GradientVanishing(GradientVanishingConfig()), GradientVanishing(GradientVanishingConfig())
    assert not before.is_open
    after.resume(a_net(1e-9, 1e-3).healthy(20).only("gradient_vanishing").last)
    assert after.is_open
