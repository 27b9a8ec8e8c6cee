"""dead_units: shares of silent units over a window, and over ranks."""

import functools
from collections.abc import Callable
from typing import Any

import pytest

from caboose_wire import Module
from support.ranks import EVERYTHING
from support.scenario import Scenario
from support.scenario import scenario as of_all_rules
from support.summaries import lacks

scenario = functools.partial(of_all_rules, about="dead_units")

MODULES = (Module("fc1", "Linear"), Module("relu1", "ReLU"), Module("relu2", "ReLU"))


def a_relu_net(**settings: Any) -> Scenario:
    return scenario(modules=MODULES, visible=EVERYTHING, **settings)


def window(story: Scenario, first: float, second: float = 0.1) -> Scenario:
    """The agents' window is full at the eighth look: before that there is nothing to show."""
    return story.sampled(7, activation_dead=[-1, -1, -1]).sampled(activation_dead=[-1, first, second])


def test_is_silent_up_to_the_threshold_and_warns_above_it() -> None:
    assert window(a_relu_net(), 0.399).is_silent

    episode = window(a_relu_net(), 0.41).only("dead_units")
    assert (episode.severity, episode.first.layers, episode.first.phase) == ("warning", ("relu1",), "forward")
    assert lacks(episode.first.summary, "41 % of relu1", "limit 40 %", "since step 8") == []


def test_less_than_the_critical_share_is_a_note_in_a_run_that_has_learned() -> None:
    learned = a_relu_net().losses(*(2.3 * 0.99**step for step in range(120)))
    assert window(learned, 0.5).only("dead_units").severity == "info"

    learned = a_relu_net().losses(*(2.3 * 0.99**step for step in range(120)))
    assert window(learned, 0.7).only("dead_units").severity == "warning"


def test_names_the_worst_layer_first() -> None:
    assert window(a_relu_net(), 0.5, 0.9).only("dead_units").first.layers == ("relu2", "relu1")


def test_a_share_that_stays_high_is_a_warning_however_high() -> None:
    story = a_relu_net()
    for _ in range(10):
        window(story, 0.9)

    assert story.only("dead_units").severity == "warning"


def test_units_that_die_are_critical_at_the_second_window() -> None:
    story = window(window(a_relu_net(), 0.2), 0.7)
    assert story.only("dead_units").severity == "warning"

    assert window(story, 0.8).only("dead_units").severity == "critical"


def test_a_share_that_creeps_is_not_dying() -> None:
    story = a_relu_net()
    for i in range(40):
        window(story, 0.3 + 0.015 * i)

    assert story.only("dead_units").severity == "warning"


def test_ends_when_the_units_live_again() -> None:
    story = window(window(a_relu_net(), 0.5), 0.39)
    assert story.only("dead_units").is_open

    assert window(story, 0.3).only("dead_units").last.state == "resolved"


@pytest.mark.parametrize(
    ("shares", "is_silent"),
    [(lambda rank: 0.9 if rank else 0.1, True), (lambda rank: 0.5 + 0.1 * rank, False)],
    ids=["alive on one rank", "dead on every rank"],
)
def test_what_fires_on_any_rank_is_alive(shares: Callable[[int], float], is_silent: bool) -> None:
    story = a_relu_net().sampled(activation_dead=lambda rank: [-1, shares(rank), 0.0])

    assert story.is_silent is is_silent


def test_sparse_but_living_layers_are_healthy() -> None:
    assert a_relu_net().sampled(50, activation_zero_fraction=[0, 0.9, 0.95], activation_dead=[-1, 0.02, 0.1]).is_silent


@pytest.mark.parametrize(("num_samples", "is_silent"), [(4, True), (64, False)])
def test_a_window_of_few_samples_is_not_judged(num_samples: int, is_silent: bool) -> None:
    assert window(a_relu_net().meanwhile(num_samples=num_samples), 0.8).is_silent is is_silent


def test_the_loaders_batch_size_tells_how_many_samples_there_were() -> None:
    assert window(a_relu_net(facts={"batch_size": 2}), 0.8).is_silent


def test_abstains_without_activations_and_while_the_window_is_not_full() -> None:
    assert window(scenario(modules=MODULES), 0.9).is_silent
    assert a_relu_net().sampled(50, activation_dead=[-1, -1, -1]).is_silent
    assert a_relu_net().healthy(50).is_silent


def test_abstains_when_most_ranks_are_missing() -> None:
    story = a_relu_net(ranks=4).falls_silent(1, 2, 3).sampled(activation_dead=[-1, 0.9, 0.9]).wait(5)

    assert not story.of("dead_units")


def test_a_long_noisy_healthy_run_is_silent() -> None:
    story = a_relu_net(ranks=2)
    for _ in range(200):
        window(story, float(story.random.uniform(0.0, 0.35)), float(story.random.uniform(0.0, 0.35)))

    assert story.is_silent
