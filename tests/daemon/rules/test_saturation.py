"""saturation: flat units through which no gradient passes, and those that may well be flat."""

import functools
from typing import Any

import pytest

from caboose_wire import Layer, Module
from support.ranks import EVERYTHING
from support.scenario import Scenario
from support.scenario import scenario as of_all_rules
from support.summaries import lacks

scenario = functools.partial(of_all_rules, about="saturation")

LAYERS = tuple(Layer(f"net.{i}.weight", 10_000, "Linear") for i in (0, 2, 4))
MODULES = tuple(Module(f"net.{i}", kind) for i, kind in enumerate(("Linear", "Tanh", "Linear", "Tanh", "Linear")))
BLOCKED, PASSING = (0.1, 10.0, 10.0), (5.0, 10.0, 10.0)


def a_tanh_net(norms: tuple[float, ...] = BLOCKED, **settings: Any) -> Scenario:
    net = {"layers": LAYERS, "modules": MODULES, "visible": EVERYTHING, "norms": norms}
    return scenario(ranks=2, **{**net, **settings})


def look(story: Scenario, steps: int, first: float, second: float = 0.0, **arrays: Any) -> Scenario:
    sees = {"activation_saturated": [-1, first, -1, second, -1], "activation_order": range(5)}
    return story.sampled(steps, **{**sees, **arrays})


def test_speaks_at_the_third_look_in_a_row() -> None:
    story = look(a_tanh_net(), 2, 0.6)
    assert story.is_silent

    episode = look(story, 1, 0.6).only("saturation")
    assert (episode.severity, episode.first.step, episode.first.onset_step) == ("warning", 3, 1)
    assert (episode.first.layers, episode.first.phase) == (("net.1",), "forward")
    assert lacks(episode.first.summary, "60 % of net.1 (Tanh)", "since step") == []


@pytest.mark.parametrize(("share", "is_silent"), [(0.5, True), (0.51, False)])
def test_more_than_half_must_be_saturated(share: float, is_silent: bool) -> None:
    assert look(a_tanh_net(), 5, share).is_silent is is_silent


@pytest.mark.parametrize(("below", "is_silent"), [(3.1, True), (2.9, False)])
def test_the_gradient_below_must_be_small_against_the_one_above(below: float, is_silent: bool) -> None:
    assert look(a_tanh_net((below, 10.0, 10.0)), 5, 0.9).is_silent is is_silent


@pytest.mark.parametrize(("weights", "is_silent"), [(10.0, True), (200.0, False)])
def test_weights_that_are_far_too_large_do_not_make_up_for_it(weights: float, is_silent: bool) -> None:
    story = a_tanh_net((10.0, 10.0, 10.0))

    assert look(story, 5, 0.9, weight_norm=[weights] * 3).is_silent is is_silent


def test_under_norm_layers_the_size_of_the_weights_says_nothing() -> None:
    story = a_tanh_net((10.0, 10.0, 10.0), modules=(*MODULES, Module("norm", "LayerNorm")))
    arrays = {"activation_saturated": [-1, 0.9, -1, 0.9, -1, -1], "activation_order": range(6)}

    assert story.sampled(5, weight_norm=[200.0] * 3, **arrays).is_silent


def test_one_look_in_between_begins_the_count_anew() -> None:
    story = look(look(look(a_tanh_net(), 2, 0.9), 1, 0.1), 2, 0.9)

    assert story.is_silent


def test_ends_after_three_looks_at_which_gradients_pass() -> None:
    story = look(look(a_tanh_net(), 5, 0.9), 2, 0.1)
    assert story.only("saturation").is_open

    assert look(story, 1, 0.1).only("saturation").last.state == "resolved"


# Look-alikes


def test_a_confident_output_is_healthy() -> None:
    modules = (*MODULES, Module("net.5", "Sigmoid"))
    story = a_tanh_net((0.01, 0.01, 0.01), modules=modules)

    assert look(story, 9, 0.1, activation_saturated=[-1, 0.1, -1, 0.1, -1, 0.99], activation_order=range(6)).is_silent


def test_a_head_that_is_sure_while_the_trunk_learns_through_another_is_healthy() -> None:
    layers = tuple(Layer(f"{name}.weight", 10_000, "Linear") for name in ("trunk", "head1", "head2"))
    modules = tuple(
        Module(n, k) for n, k in (("trunk", "Linear"), ("head1", "Linear"), ("s", "Sigmoid"), ("head2", "Linear"))
    )
    story = a_tanh_net((10.0, 0.01, 10.0), layers=layers, modules=modules)

    assert story.sampled(9, activation_saturated=[-1, -1, 0.99, -1], activation_order=range(4)).is_silent


def test_gates_that_are_computed_side_by_side_are_healthy() -> None:
    layers = (Layer("cell.gates.weight", 10_000, "Linear"), Layer("head.weight", 10_000, "Linear"))
    names = ("cell.gates", "cell.sigmoid", "cell.sigmoid#2", "cell.tanh", "head")
    modules = tuple(
        Module(n, k) for n, k in zip(names, ("Linear", "sigmoid", "sigmoid", "tanh", "Linear"), strict=True)
    )
    story = a_tanh_net((0.01, 10.0), layers=layers, modules=modules)

    assert story.sampled(9, activation_saturated=[-1, 0.9, 0.9, 0.6, -1], activation_order=range(5)).is_silent


def test_functional_calls_with_weights_between_them_are_no_gates() -> None:
    names = ("net.0", "net.sigmoid", "net.2", "net.sigmoid#2", "net.4")
    modules = tuple(Module(n, "sigmoid" if "sig" in n else "Linear") for n in names)

    assert look(a_tanh_net(modules=modules), 5, 0.9).of("saturation")


def test_a_long_healthy_run_with_partly_saturated_units_is_silent() -> None:
    story = a_tanh_net(PASSING, noise=0.3)
    for _ in range(300):
        look(story, 1, float(story.random.uniform(0, 0.8)), float(story.random.uniform(0, 0.8)))

    assert story.is_silent


# Blindness


def test_abstains_without_activations_or_gradients() -> None:
    assert look(a_tanh_net(visible=("loss", "gradients")), 9, 0.9).is_silent
    assert look(a_tanh_net(visible=("loss", "activations")), 9, 0.9).is_silent
    assert look(a_tanh_net(), 9, 0.9, grad_norm=[-1.0] * 3).is_silent


def test_modules_that_were_not_called_do_not_count() -> None:
    assert look(a_tanh_net(), 9, 0.9, activation_order=[0, -1, 1, -1, 2]).is_silent
