"""activation_collapse: a layer's spread against its own history."""

import functools
from typing import Any

import pytest

from caboose_wire import Module
from support.ranks import EVERYTHING, LAYERS
from support.scenario import Scenario
from support.scenario import scenario as of_all_rules
from support.summaries import lacks

scenario = functools.partial(of_all_rules, about="activation_collapse")

MODULES = (Module("fc1", "Linear"), Module("norm", "LayerNorm"), Module("fc2", "Linear"))
USUAL = (1.0, 1.0, 5.0)


def a_net(samples: int = 20, **settings: Any) -> Scenario:
    """A run that is past its first steps and has been looked at a few times."""
    story = scenario(ranks=2, **{"modules": MODULES, "visible": EVERYTHING, **settings}).healthy(20)
    return sample(story, samples)


def sample(story: Scenario, samples: int, *stds: float, wobble: float = 0.05) -> Scenario:
    for _ in range(samples):
        values = [std * float(story.random.normal(1.0, wobble)) for std in stds or USUAL]
        story.sampled(activation_std=values, activation_order=range(len(values)))
    return story


@pytest.mark.parametrize(("std", "what"), [(0.0, "collapsed"), (0.005, "collapsed"), (50.0, "exploded")])
def test_speaks_at_the_second_look_in_a_row(std: float, what: str) -> None:
    story = sample(a_net(), 1, std, 1.0, 5.0)
    assert story.is_silent

    episode = sample(story, 1, std, 1.0, 5.0).only("activation_collapse")
    assert (episode.severity, episode.first.layers, episode.first.phase) == ("warning", ("fc1",), "forward")
    assert lacks(episode.first.summary, what, "fc1", f"{episode.first.values['std']:.2g}", "usually 1") == []


@pytest.mark.parametrize(("norm", "ratio"), [(0.5, 0.25), (2.0, 1.0)])
def test_says_what_became_of_the_weights_meanwhile(norm: float, ratio: float) -> None:
    story = a_net()
    for std, size in ((1.0, 2.0), (0.001, norm), (0.001, norm)):
        story.sampled(activation_std=[std, 1.0, 5.0], activation_order=range(3), weight_norm=[size] * len(LAYERS))

    assert story.only("activation_collapse").first.values["weight_ratio"] == pytest.approx(ratio)


@pytest.mark.parametrize("std", [0.02, 8.0])
def test_is_silent_within_its_bounds(std: float) -> None:
    assert sample(a_net(), 9, std, 1.0, 5.0).is_silent


def test_ends_when_the_spread_is_back() -> None:
    story = sample(sample(a_net(), 5, 0.0, 1.0, 5.0), 1)

    assert story.only("activation_collapse").last.state == "resolved"


def test_a_restarted_daemon_says_nothing_until_it_knows_the_level_again() -> None:
    episode = sample(a_net(), 5, 0.0, 1.0, 5.0).only("activation_collapse")
    story = a_net(0)
    assert story.job.attempt is not None
    story.job.episodes.restore([episode])
    story.job.attempt.engine.resume()
    sample(story, 4, 0.001, 1.0, 5.0)
    assert story.job.episodes.open == [episode], "no new finding"

    sample(story, 1, 0.001, 1.0, 5.0)
    assert story.job.episodes.open == []


def test_one_odd_batch_is_nothing() -> None:
    story = a_net()
    for _ in range(5):
        sample(sample(story, 1, 0.0, 1.0, 5.0), 3)

    assert story.is_silent


def test_what_has_stayed_for_long_is_the_new_level() -> None:
    episode = sample(a_net(), 40, 0.001, 1.0, 5.0).only("activation_collapse")

    assert (episode.num_findings, episode.last.state) == (19, "resolved")


# Look-alikes


def test_norm_layers_are_left_out() -> None:
    assert sample(a_net(), 9, 1.0, 1e-6, 5.0).is_silent


def test_a_layer_that_begins_at_zero_by_design_may_grow() -> None:
    story = sample(a_net(0), 10, 1e-4, 1.0, 5.0)

    assert sample(sample(story, 20, 0.1, 1.0, 5.0), 20, 3.0, 1.0, 5.0).is_silent


def test_a_module_without_spread_from_the_start_is_built_so() -> None:
    assert sample(a_net(0), 30, 0.0, 1.0, 5.0).is_silent


def test_the_first_steps_and_a_warm_up_are_not_learned_from() -> None:
    story = scenario(ranks=2, modules=MODULES, visible=EVERYTHING)
    sample(story, 10, 500.0, 1.0, 5.0)

    assert sample(story.healthy(20), 20).is_silent


def test_a_declared_switch_of_the_data_begins_anew() -> None:
    assert sample(a_net().declares("data_switch"), 20, 0.001, 1.0, 5.0).is_silent


def test_a_long_noisy_healthy_run_is_silent() -> None:
    assert sample(a_net(), 500, wobble=0.3).is_silent


# Blindness


def test_abstains_without_activations_and_before_it_knows_the_level() -> None:
    assert sample(a_net(visible=("loss",)), 9, 0.0, 1.0, 5.0).is_silent
    assert sample(a_net(4), 9, 0.0, 1.0, 5.0).is_silent


def test_what_is_not_finite_is_left_to_non_finite() -> None:
    assert not sample(a_net(), 5, float("nan"), 1.0, 5.0).of("activation_collapse")


def test_a_module_that_was_not_called_keeps_its_level() -> None:
    story = a_net().sampled(9, activation_std=[-1, 1.0, 5.0], activation_order=[-1, 0, 1])

    assert sample(story, 5).is_silent
