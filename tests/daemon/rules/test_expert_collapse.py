"""expert_collapse: shares of tokens per expert, over samples and ranks."""

import functools
from typing import Any

import pytest

from caboose_wire import Module
from support.ranks import EVERYTHING
from support.scenario import Scenario
from support.scenario import scenario as of_all_rules
from support.summaries import lacks

scenario = functools.partial(of_all_rules, about="expert_collapse")
MODULES = (Module("embed", "Embedding"), Module("moe1.gate", "Linear", 8), Module("moe2.gate", "Linear", 8))


def a_mixture(**settings: Any) -> Scenario:
    return scenario(modules=MODULES, visible=EVERYTHING, **settings).healthy(30)


def routed(story: Scenario, first: float, second: float = 0.9, *, steps: int = 1, dead: float = -1.0) -> Scenario:
    return story.sampled(
        steps,
        router_entropy=[-1, first, second],
        router_share=[-1, 0.8, 0.2],
        router_busiest=[-1, 3, 5],
        router_dead=[-1, dead, -1],
    )


def test_is_silent_up_to_the_threshold_and_warns_below_it() -> None:
    assert routed(a_mixture(), 0.61, steps=20).is_silent
    assert routed(a_mixture(), 0.59, steps=3).is_silent

    episode = routed(a_mixture(), 0.59, steps=4).only("expert_collapse")
    assert (episode.severity, episode.first.layers, episode.first.phase) == ("warning", ("moe1.gate",), "forward")
    assert lacks(episode.first.summary, "0.59 (limit 0.6)", "expert 3 of 8 gets 80 %") == []


def test_names_the_router_with_the_lowest_entropy_first() -> None:
    assert routed(a_mixture(), 0.5, 0.2, steps=4).only("expert_collapse").first.layers == ("moe2.gate", "moe1.gate")


def test_experts_that_are_dead_for_two_windows_are_reported() -> None:
    assert routed(routed(a_mixture(), 0.9, dead=0.5), 0.9, dead=0.25).is_silent

    episode = routed(a_mixture(), 0.9, steps=2, dead=0.375).only("expert_collapse")
    assert lacks(episode.first.summary, "38 % of the experts get none") == []


def test_a_router_that_is_even_on_one_rank_has_not_collapsed() -> None:
    story = a_mixture().sampled(20, router_entropy=lambda rank: [-1, 0.9 if rank == 1 else 0.1, 0.9])

    assert story.is_silent


def test_ends_when_experts_are_used_again() -> None:
    story = routed(a_mixture(), 0.3, steps=5)
    assert routed(story, 0.65).only("expert_collapse").is_open

    assert routed(story, 0.75).only("expert_collapse").last.state == "resolved"


def test_a_single_sample_is_not_a_collapse() -> None:
    story = a_mixture()
    for _ in range(10):
        routed(routed(story, 0.1), 0.9)

    assert story.is_silent


def test_a_long_noisy_healthy_run_is_silent() -> None:
    story = a_mixture(ranks=2)
    for _ in range(300):
        routed(story, float(story.random.uniform(0.55, 0.98)), float(story.random.uniform(0.65, 1.0)), dead=0.125)

    assert story.is_silent


@pytest.mark.parametrize("entropies", [[-1, -1, -1], [float("nan")] * 3])
def test_abstains_without_a_router(entropies: list[float]) -> None:
    assert a_mixture().sampled(50, router_entropy=entropies).is_silent
    assert a_mixture().healthy(50).is_silent


def test_abstains_when_most_ranks_are_missing() -> None:
    story = a_mixture(ranks=4).falls_silent(1, 2, 3)

    assert not routed(story, 0.1, steps=10).wait(5).of("expert_collapse")
