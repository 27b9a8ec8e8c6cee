"""loss_scale_collapse: halvings that are a scaler's daily life, and those that are not."""

import functools

import pytest

from caboose_wire import Module, Scaler
from support.scenario import Scenario
from support.scenario import scenario as of_all_rules
from support.summaries import lacks

scenario = functools.partial(of_all_rules, about="loss_scale_collapse")


MODULES = tuple(Module(f"act{i}", "ReLU", 8) for i in range(3))


class Amp:
    """A run with a gradient scaler, told by its steps."""

    def __init__(self, scale: float = 65536.0) -> None:
        self.scale, self.num_skipped = scale, 0
        self.story = scenario(ranks=2, modules=MODULES)

    def good(self, steps: int) -> Scenario:
        return self.story.meanwhile(scaler=Scaler(self.scale, self.num_skipped)).healthy(steps)

    def overflows(self, times: int) -> Scenario:
        for _ in range(times):
            self.scale, self.num_skipped = self.scale / 2, self.num_skipped + 1
            self.good(1)
        return self.story

    def grows(self) -> Scenario:
        self.scale *= 2
        return self.good(1)


def test_tells_how_near_the_activations_were_to_the_end_of_the_range() -> None:
    amp = Amp()
    amp.good(30)
    amp.story.sampled(activation_max=[3.0, 41000.0, float("inf")])

    episode = amp.overflows(5).only("loss_scale_collapse")
    assert episode.first.values["largest_activation"] == 41000.0


def test_speaks_at_the_fifth_halving_in_a_short_time() -> None:
    amp = Amp()
    amp.good(30)
    assert amp.overflows(4).is_silent

    episode = amp.overflows(1).only("loss_scale_collapse")
    assert (episode.severity, episode.first.onset_step) == ("warning", 31)
    assert lacks(episode.first.summary, "5 halvings", "now 2,048", "since step 31") == []


def test_the_first_search_is_silent_as_long_as_it_finds_a_scale() -> None:
    amp = Amp()
    amp.good(1)
    amp.overflows(14)

    assert amp.good(100).is_silent


def test_a_search_that_reaches_one_is_a_collapse() -> None:
    amp = Amp()
    amp.good(1)
    assert amp.overflows(15).is_silent

    assert amp.overflows(1).only("loss_scale_collapse").severity == "warning"
    assert amp.story.only("loss_scale_collapse").first.values["scale"] == 1


def test_steps_that_go_on_being_skipped_at_the_floor_are_critical() -> None:
    amp = Amp(8.0)
    amp.good(30)
    amp.overflows(4)
    assert amp.overflows(0).only("loss_scale_collapse").severity == "warning"

    assert amp.overflows(1).only("loss_scale_collapse").severity == "critical"


def test_ends_when_the_scale_has_held_for_a_while() -> None:
    amp = Amp()
    amp.good(30)
    amp.overflows(8)
    assert amp.good(49).only("loss_scale_collapse").is_open

    assert amp.good(200).only("loss_scale_collapse").last.state == "resolved"


def test_does_not_end_while_the_scale_lies_at_the_floor() -> None:
    amp = Amp(4.0)
    amp.good(30)
    amp.overflows(2)
    assert amp.good(300).only("loss_scale_collapse").is_open

    amp.grows()
    assert amp.good(1).only("loss_scale_collapse").last.state == "resolved"


def test_a_halving_now_and_then_is_a_scalers_life() -> None:
    amp = Amp()
    for _ in range(10):
        amp.good(200)
        amp.overflows(2)
        amp.grows()
        amp.grows()

    assert amp.story.is_silent


def test_a_scale_that_was_set_to_one_is_a_choice() -> None:
    assert Amp(1.0).good(100).is_silent


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), 0.0])
def test_abstains_on_a_scale_that_says_nothing(scale: float) -> None:
    assert scenario().meanwhile(scaler=Scaler(scale, 9)).healthy(50).is_silent


def test_abstains_without_a_scaler() -> None:
    assert scenario().healthy(50).is_silent
