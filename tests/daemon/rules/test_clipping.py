"""clipping: the share of steps on which it acts."""

import functools
from typing import Any

import numpy as np
import pytest

from caboose_wire import Clipping, Group, Scaler
from support.ranks import EVERYTHING
from support.scenario import NORMS, Scenario
from support.scenario import scenario as of_all_rules
from support.summaries import lacks

scenario = functools.partial(of_all_rules, about="clipping")

NORM = float(np.linalg.norm(NORMS))
ACTS, RESTS = Clipping(max_norm=NORM / 2), Clipping(max_norm=NORM * 2)


def a_run(**settings: Any) -> Scenario:
    """A run that is past its first steps."""
    return scenario(ranks=1, visible=EVERYTHING, **settings).healthy(20)


def clipped(story: Scenario, steps: int, share: float) -> Scenario:
    """Every now and then a step is clipped, so that their share is this one."""
    for i in range(steps):
        acts = int((i + 1) * share) > int(i * share)
        story.meanwhile(clipping=ACTS if acts else RESTS).healthy(1)
    return story


@pytest.mark.parametrize(("share", "is_silent"), [(0.45, True), (0.55, False)])
def test_warns_when_most_steps_are_clipped(share: float, is_silent: bool) -> None:
    assert clipped(a_run(), 600, share).is_silent is is_silent


@pytest.mark.parametrize("objective", ["adversarial", "reinforcement"])
def test_where_no_loss_is_meant_to_fall_clipping_every_step_is_usual(objective: str) -> None:
    assert clipped(a_run(facts={"objective": objective}), 300, 1.0).only("clipping").severity == "info"


def test_few_norms_over_a_memory_are_enough_where_they_are_taken_rarely() -> None:
    story = a_run().meanwhile(clipping=ACTS)
    for _ in range(25):
        story.healthy(1).plays(11, arrays={}, clipping=Clipping())

    assert story.only("clipping").first.step == 249, "the first norm more than 200 steps after another one"


def test_waits_for_as_many_steps_as_it_remembers() -> None:
    story = clipped(a_run(), 199, 1.0)
    assert story.is_silent

    episode = clipped(story, 1, 1.0).only("clipping")
    assert episode.first.step == 220
    assert (
        lacks(episode.first.summary, "100 % of the last 200 steps", "step 220 to 0.5", "clipping sets the step length")
        == []
    )


def standing(steps: int, cut: float, optimizer: str = "SGD", slope: float = 0.0) -> Scenario:
    """A run whose every step is cut to a share of its norm, while its loss changes by `slope` at each step."""
    story = a_run(groups=(Group("0", optimizer, {"lr": 1e-3}),))
    for number in range(steps):
        story.meanwhile(clipping=Clipping(max_norm=NORM * cut)).losses(3.0 + slope * number)
    return story


@pytest.mark.parametrize(
    ("cut", "optimizer", "slope", "severity"),
    [
        (0.5, "SGD", 0.0, "warning"),
        (0.5, "SGD", -0.005, "info"),
        (0.01, "SGD", -0.005, "warning"),
        (0.01, "AdamW", 0.0, "info"),
    ],
    ids=["nothing is learned", "the loss falls", "cut to a hundredth", "a step that no size changes"],
)
def test_frequent_clipping_is_a_fault_where_it_costs_progress(
    cut: float, optimizer: str, slope: float, severity: str
) -> None:
    assert standing(220, cut, optimizer, slope).only("clipping").severity == severity


def test_says_less_between_half_and_four_fifths() -> None:
    assert "sets the step length" not in clipped(a_run(), 300, 0.6).only("clipping").last.summary


def test_ends_when_clipping_is_rare_again() -> None:
    story = clipped(clipped(a_run(), 300, 1.0), 600, 0.1)

    assert story.only("clipping").last.state == "resolved"


def test_a_burst_of_clipped_steps_is_what_clipping_is_for() -> None:
    assert clipped(clipped(a_run(), 400, 0.1), 50, 1.0).is_silent


def test_steps_of_a_warm_up_are_not_counted() -> None:
    story = scenario(ranks=1, visible=EVERYTHING)
    for i in range(500):
        clipped(story.meanwhile(lr=(1e-6 * (i + 1),)), 1, 1.0)

    assert not story.of("clipping")


def test_a_clipper_that_never_acts_is_an_information() -> None:
    story = clipped(a_run(), 999, 0.0)
    assert story.is_silent

    episode = clipped(story, 1, 0.0).only("clipping")
    assert episode.severity == "info"
    assert lacks(episode.first.summary, "1,000 steps", "largest norm 0.548") == []
    assert clipped(story, 1, 1.0).only("clipping").last.state == "resolved"


def test_a_gradient_that_is_not_finite_does_not_count() -> None:
    story = clipped(a_run(), 300, 0.0).meanwhile(clipping=ACTS)

    assert not story.nan_gradient(0, at=321, steps=300).of("clipping")


def test_abstains_when_clipping_is_not_seen_or_not_used() -> None:
    assert a_run().healthy(1500).is_silent
    assert clipped(scenario(ranks=1), 300, 1.0).is_silent
    assert a_run().meanwhile(clipping=Clipping()).healthy(300).is_silent


def scaled(story: Scenario, steps: int, max_norm: float = 1.0, scale: float = 65536.0) -> Scenario:
    """Steps of a loop that clips before it removes the scale."""
    return story.meanwhile(clipping=Clipping(max_norm, NORM, is_scaled=True), scaler=Scaler(scale)).healthy(steps)


def test_clipping_before_unscale_is_a_finding_of_its_own_after_ten_steps() -> None:
    story = scaled(a_run(), 9)
    assert story.is_silent

    episode = scaled(story, 1).only("clipping")
    assert episode.severity == "warning"
    assert lacks(episode.first.summary, "scaled gradients", "scale 65,536", "1.53e-05", "scaler.unscale_") == []
    assert episode.first.values["clip_ratio"] == pytest.approx(1.0 / (NORM * 65536.0))
    story.meanwhile(clipping=RESTS, scaler=Scaler(65536.0)).healthy(1)
    assert story.only("clipping").last.state == "resolved"


@pytest.mark.parametrize(("max_norm", "scale"), [(1e6, 65536.0), (1.0, 1.0)], ids=["never acts", "no scale"])
def test_clipping_before_unscale_that_changes_nothing_is_not_reported(max_norm: float, scale: float) -> None:
    assert scaled(a_run(), 100, max_norm, scale).is_silent
