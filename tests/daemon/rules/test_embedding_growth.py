"""embedding_growth: the embedding and the output layer against the other matrices."""

import functools
from typing import Any

import numpy as np

from caboose_wire import Layer
from support.ranks import EVERYTHING
from support.scenario import Scenario
from support.scenario import scenario as of_all_rules
from support.summaries import lacks

scenario = functools.partial(of_all_rules, about="embedding_growth")
BLOCKS = tuple(Layer(name=f"blocks.{i}.weight", numel=400, kind="Linear") for i in range(4))
NORM = Layer(name="norm.weight", numel=16, kind="LayerNorm")
LAYERS = (
    Layer(name="embed.weight", numel=900, kind="Embedding"),
    *BLOCKS,
    NORM,
    Layer("lm_head.weight", 900, "Linear"),
)


def a_model(layers: tuple[Layer, ...] = LAYERS, **settings: Any) -> Scenario:
    return scenario(layers=layers, norms=np.ones(len(layers)), visible=EVERYTHING, **settings).healthy(20)


def weights(story: Scenario, *, embed: float = 1.0, head: float = 1.0, rest: float = 1.0) -> Scenario:
    """Typical weights, in units of 0.02."""
    typical = np.array([embed, rest, rest, rest, rest, 50.0, head])
    return story.sampled(weight_norm=0.02 * typical * np.sqrt([layer.numel for layer in LAYERS]))


def growing(story: Scenario, last: float, *, of: str = "head", rest: float = 1.0, samples: int = 40) -> Scenario:
    for i in range(samples):
        share = i / (samples - 1)
        weights(story, **{of: 1.0 + (last - 1.0) * share, "rest": 1.0 + (rest - 1.0) * share})
    return story


def test_is_silent_up_to_the_factor_and_warns_above_it() -> None:
    assert growing(a_model(), 4.8).is_silent

    episode = growing(a_model(), 8.0).only("embedding_growth")
    assert (episode.severity, episode.first.layers) == ("warning", ("lm_head.weight",))
    assert lacks(episode.first.summary, "0.02 of the other matrices", "growing") == []


def test_an_embedding_grows_away_too() -> None:
    assert growing(a_model(), 8.0, of="embed").only("embedding_growth").first.layers == ("embed.weight",)


def test_is_silent_where_the_whole_model_grows() -> None:
    assert growing(a_model(), 20.0, rest=10.0).is_silent


def test_is_silent_where_an_output_layer_begins_at_zero() -> None:
    story = a_model()
    for i in range(60):
        weights(story, head=0.001 + 2.0 * i / 60)

    assert story.is_silent


def test_is_silent_where_an_embedding_is_larger_from_the_start() -> None:
    story = a_model()
    for i in range(60):
        weights(story, embed=50.0 + i / 60)

    assert story.is_silent


def test_is_silent_where_growth_has_ended_before_the_factor() -> None:
    story = growing(a_model(), 4.2)
    for _ in range(200):
        weights(story, head=4.2 * float(story.random.normal(1.0, 0.02)))

    assert story.is_silent


def test_ends_when_the_layer_is_as_large_as_the_others_again() -> None:
    story = growing(a_model(), 8.0)
    assert weights(story, head=4.5).only("embedding_growth").is_open

    assert weights(story, head=3.0).only("embedding_growth").last.state == "resolved"


def test_a_model_without_an_embedding_is_not_judged() -> None:
    layers = (Layer(name="input.weight", numel=900, kind="Linear"), *LAYERS[1:])

    assert growing(a_model(layers), 20.0).is_silent


def test_abstains_without_weights() -> None:
    assert a_model().sampled(60).is_silent
