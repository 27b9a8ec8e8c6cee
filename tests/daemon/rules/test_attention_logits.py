"""attention_logits: bounds that are high, have grown and still grow."""

import functools
from typing import Any

import pytest

from caboose_wire import Module
from support.ranks import EVERYTHING
from support.scenario import Scenario
from support.scenario import scenario as of_all_rules
from support.summaries import lacks

scenario = functools.partial(of_all_rules, about="attention_logits")
MODULES = (Module("a.qkv", "Linear"), Module("a.attention", "attention"), Module("b.attention", "attention"))


def a_transformer(**settings: Any) -> Scenario:
    return scenario(modules=MODULES, visible=EVERYTHING, **settings).healthy(20)


def bounded(story: Scenario, first: float, second: float = 10.0) -> Scenario:
    return story.sampled(attention_logit=[-1, first, second], attention_head=[-1, 2, 0])


def growing(story: Scenario, last: float, first: float = 5.0, samples: int = 30) -> Scenario:
    for i in range(samples):
        bounded(story, first * (last / first) ** (i / (samples - 1)))
    return story


def test_is_silent_up_to_the_limit_and_warns_above_it() -> None:
    assert growing(a_transformer(), 1000.0).is_silent

    episode = growing(a_transformer(), 2000.0).only("attention_logits")
    assert (episode.severity, episode.first.layers) == ("warning", ("a.attention",))
    assert lacks(episode.first.summary, "a.attention, head 2", "and grow") == []


def test_is_silent_where_the_bound_has_always_been_high() -> None:
    assert growing(a_transformer(), 9000.0, first=1000.0).is_silent


def test_is_silent_where_it_has_grown_and_stands() -> None:
    story = growing(a_transformer(), 950.0)
    for _ in range(200):
        bounded(story, float(950.0 * story.random.normal(1.0, 0.01)))

    assert story.is_silent


def test_float16_has_less_room() -> None:
    assert growing(a_transformer(), 500.0).is_silent

    assert growing(a_transformer(facts={"precision": "float16"}), 500.0).only("attention_logits")


def test_a_single_high_sample_is_silent() -> None:
    story = growing(a_transformer(), 500.0)

    assert bounded(bounded(story, 5000.0), 500.0).is_silent


def test_ends_when_the_logits_are_small_again() -> None:
    story = growing(a_transformer(), 3000.0)
    assert bounded(story, 900.0).only("attention_logits").is_open

    assert bounded(story, 400.0).only("attention_logits").last.state == "resolved"


def test_a_long_noisy_healthy_run_is_silent() -> None:
    story = a_transformer(ranks=2)
    for i in range(400):
        bounded(story, 5.0 + 100.0 * i / 400 * float(story.random.lognormal(0.0, 0.5)))

    assert story.is_silent


@pytest.mark.parametrize("arrays", [{}, {"attention_logit": [-1, -1, -1]}, {"attention_logit": [float("nan")] * 3}])
def test_abstains_without_attention(arrays: dict[str, Any]) -> None:
    assert a_transformer().sampled(60, **arrays).is_silent
