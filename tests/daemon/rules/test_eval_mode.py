"""eval_mode: training in eval mode, and what is in eval on purpose."""

import functools
from typing import Any

import pytest

from caboose_wire import Layer, Mode
from support.ranks import EVERYTHING
from support.scenario import Scenario
from support.scenario import scenario as of_all_rules
from support.summaries import lacks

scenario = functools.partial(of_all_rules, about="eval_mode")

EVAL = Mode(is_training=False, num_norms_in_eval=2, num_dropouts_in_eval=1)


def a_run(**settings: Any) -> Scenario:
    return scenario(visible=EVERYTHING, **settings).meanwhile(mode=Mode()).healthy(5)


def test_speaks_at_the_third_step_in_eval_mode() -> None:
    story = a_run().meanwhile(mode=EVAL).healthy(2)
    assert story.is_silent

    episode = story.healthy(1).only("eval_mode")
    assert (episode.severity, episode.first.onset_step, episode.first.ranks) == ("warning", 6, ())
    assert lacks(episode.first.summary, "2 batch norms and 1 dropout", "3 training steps") == []


def test_a_model_without_norms_and_dropouts_counts_as_well() -> None:
    assert a_run().meanwhile(mode=Mode(is_training=False)).healthy(3).only("eval_mode").severity == "warning"


def test_never_pages_and_is_one_episode() -> None:
    episode = a_run().meanwhile(mode=EVAL).healthy(100).only("eval_mode")

    assert (episode.severity, episode.num_findings) == ("warning", 98)


def test_ends_after_three_steps_in_train_mode() -> None:
    story = a_run().meanwhile(mode=EVAL).healthy(10).meanwhile(mode=Mode()).healthy(2)
    assert story.only("eval_mode").is_open

    assert story.healthy(1).only("eval_mode").last.state == "resolved"


def test_names_the_ranks_where_not_all_are_concerned() -> None:
    finding = a_run().meanwhile(mode=lambda rank: EVAL if rank == 2 else Mode()).healthy(3).only("eval_mode").first

    assert finding.ranks == (2,)
    assert lacks(finding.summary, "on rank 2") == []


@pytest.mark.parametrize(
    ("mode", "what"),
    [
        (Mode(num_norms_in_eval=3), "3 batch norms in eval mode"),
        (Mode(num_dropouts_in_eval=1), "1 dropout in eval mode"),
    ],
)
def test_parts_that_were_left_in_eval_are_named(mode: Mode, what: str) -> None:
    assert a_run().meanwhile(mode=mode).healthy(3).only("eval_mode").first.summary.startswith(what)


# Look-alikes


def test_norms_that_were_declared_frozen_are_healthy() -> None:
    frozen = Mode(num_norms_in_eval=3)

    assert a_run(config={"frozen_norms": True}).meanwhile(mode=frozen).healthy(20).is_silent


def test_dropouts_of_a_frozen_backbone_are_healthy() -> None:
    layers = tuple(Layer(f"layer{i}.weight", 100, "Linear", trainable=i > 1) for i in range(4))

    assert a_run(layers=layers).meanwhile(mode=Mode(num_dropouts_in_eval=9)).healthy(20).is_silent


def evaluates(story: Scenario, mode: Mode) -> Scenario:
    return story.declares("validation").meanwhile(mode=mode).healthy(1).meanwhile(mode=Mode()).healthy(9)


def test_evaluations_with_gradients_on_are_an_information() -> None:
    story = evaluates(a_run(), EVAL)
    assert story.is_silent

    episode = evaluates(story, EVAL).only("eval_mode")
    assert (episode.severity, episode.is_open) == ("info", True)
    assert evaluates(story, Mode()).only("eval_mode").last.state == "resolved"


def test_evaluations_after_the_step_boundary_are_found_as_well() -> None:
    evaluation = Mode(num_evaluations=5)
    episode = evaluates(evaluates(a_run(), evaluation), evaluation).only("eval_mode")
    assert (episode.severity, episode.is_open) == ("info", True)
    assert "torch.no_grad()" in episode.first.summary


def test_two_evaluations_in_train_mode_are_reported_until_one_is_in_eval_mode() -> None:
    in_train = Mode(num_train_evaluations=5)
    story = evaluates(a_run(), in_train)
    assert story.is_silent

    episode = evaluates(story, in_train).only("eval_mode")
    assert (episode.severity, episode.is_open) == ("warning", True)
    assert lacks(episode.first.summary, "train mode in the last 2 evaluations", "model.eval()") == []
    assert evaluates(story, Mode()).only("eval_mode").last.state == "resolved"


def test_forwards_without_gradients_in_every_step_are_the_programs_own() -> None:
    story = a_run().meanwhile(mode=Mode(num_train_evaluations=1)).healthy(3)
    for _ in range(4):
        evaluates(story, Mode(num_train_evaluations=1))
    assert story.is_silent


def test_forwards_in_eval_mode_without_a_validation_are_the_programs_own() -> None:
    assert a_run().meanwhile(mode=Mode(num_evaluations=2)).healthy(30).is_silent


def test_a_model_that_stays_in_eval_after_an_evaluation_has_been_since_then() -> None:
    story = a_run().declares("validation").meanwhile(mode=EVAL).healthy(4)

    assert story.only("eval_mode").first.onset_step == 6


def test_a_long_healthy_run_with_evaluations_is_silent() -> None:
    story = a_run()
    for _ in range(100):
        evaluates(story, Mode())

    assert story.is_silent


def test_abstains_when_the_mode_is_not_seen() -> None:
    assert scenario().meanwhile(mode=EVAL).healthy(20).is_silent
    assert scenario(visible=EVERYTHING).healthy(20).is_silent
