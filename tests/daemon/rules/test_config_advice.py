"""config_advice: one list, told at the start and once more, and never a page."""

import functools
from pathlib import Path
from typing import Any

import pytest

from caboose_wire import Batch, Clipping, Event, Group
from support.ranks import EVERYTHING
from support.scenario import JournaledCore, Scenario
from support.scenario import scenario as of_all_rules

scenario = functools.partial(of_all_rules, about="config_advice")

TRANSFORMER = {"attention": True}


def a_run(optimizer: str = "AdamW", facts: dict[str, Any] | None = None, **settings: Any) -> Scenario:
    groups = (Group("0", optimizer, {"lr": 1e-3, **settings}),)
    return scenario(ranks=2, visible=EVERYTHING, groups=groups, facts=facts or {})


def advice(story: Scenario) -> set[str]:
    return set(story.only("config_advice").last.values)


@pytest.mark.parametrize(
    ("story", "name", "severity"),
    [
        (a_run("Adam", weight_decay=0.01), "adam_l2", "info"),
        (a_run(lr=0.011), "high_lr", "warning"),
        (a_run(lr=1e-6, initial_lr=0.5), "high_lr", "warning"),
        (a_run(lr=0.03, facts={"objective": "reinforcement"}), "high_lr", "info"),
        (a_run(facts={"precision": "float16", "scaler": False}), "fp16_without_scaler", "warning"),
        (a_run(facts={"dropout": "0.1, 0.9"}), "high_dropout", "warning"),
        (a_run("SGD", momentum=0.998), "high_momentum", "warning"),
        (a_run("Adam", betas="(0.996, 0.999)"), "high_momentum", "warning"),
        (a_run(facts={"init_he_min": 0.4, "init_he_max": 9.0}), "initial_weights", "warning"),
        (a_run(facts={"init_he_min": 0.0, "init_he_max": 0.001}), "initial_weights", "warning"),
        (a_run(facts={"init_recurrent": 8.0}), "initial_weights", "warning"),
        (a_run(lr=0.01, weight_decay=3.0), "high_decay", "warning"),
        (a_run(eps=1.0), "high_eps", "warning"),
        (a_run(facts={"norms": "BatchNorm2d", "batch_size": 2}), "norm_of_few", "warning"),
        (a_run(facts={"num_parameters": 1000, "frozen_at_random": 600}), "frozen_at_random", "warning"),
        (a_run(facts={"loss_mistake": "softmax_twice"}), "softmax_twice", "warning"),
        (a_run(facts={"loss_mistake": "no_log"}), "wrong_loss", "warning"),
        (a_run(facts={"loss_mistake": "over_batch"}), "wrong_loss", "warning"),
        (a_run(facts={"linear_pairs": 2}), "linear", "warning"),
    ],
    ids=[
        "Adam with L2",
        "high rate",
        "high rate after warm-up",
        "high rate of a policy",
        "fp16 without scaler",
        "high dropout",
        "high momentum",
        "high momentum of Adam",
        "large weights",
        "zero weights",
        "large recurrent weights",
        "high decay",
        "high eps",
        "batch norm of two",
        "frozen at random",
        "softmax of a softmax",
        "nll of probabilities",
        "softmax over the batch",
        "linear layers in a row",
    ],
)
def test_what_hello_tells_is_told_at_the_first_step(story: Scenario, name: str, severity: str) -> None:
    story.healthy(1)

    assert advice(story) == {name}
    assert story.only("config_advice").severity == severity


@pytest.mark.parametrize(
    "story",
    [
        a_run(lr=0.01),
        a_run("AdamW", weight_decay=0.1),
        a_run("Adam", weight_decay=0.1, decoupled_weight_decay=True),
        a_run("Adam", weight_decay=0),
        a_run("SGD", lr=0.5, weight_decay=1e-4),
        a_run("DistMuonAdamW", lr=0.2),
        a_run("SGD", momentum=0.99),
        a_run(facts={"dropout": "0.5", "init_he_min": 0.02, "init_he_max": 1.6, "init_recurrent": 1.0}),
        a_run(facts={"dropout": "1e-05, .1"}),
        a_run(facts={"norms": "LayerNorm", "batch_size": 2}),
        a_run(facts={"num_parameters": 1000, "num_trainable": 100}),
        a_run(facts={"norms": "BatchNorm2d", "batch_size": 8}),
        a_run("DAdaptAdam", lr=1.0),
        a_run(facts={"precision": "float16", "scaler": True}),
        a_run(facts={"precision": "bfloat16", "scaler": False}),
        a_run(facts={"precision": "float16"}),
    ],
)
def test_usual_settings_get_no_advice(story: Scenario) -> None:
    assert story.healthy(300).is_silent


def test_a_negated_loss_is_advised_where_it_is_below_zero() -> None:
    facts = {"loss_mistake": "negated"}

    assert a_run(facts=facts).healthy(10).is_silent
    assert advice(scenario(ranks=1, level=-2.0, facts=facts).healthy(10)) == {"wrong_loss"}


def seen(facts: dict[str, Any] | None = None, *, steps: int = 200, **batch: Any) -> Scenario:
    """A run of which every step is sampled, without a watched loader."""
    run = a_run(facts=facts).meanwhile(is_sampled=True, batch=Batch(**{"index": None, "shape": (8, 3), **batch}))
    return run.healthy(steps)


def test_a_batch_norm_of_two_is_seen_in_the_shape_of_the_input() -> None:
    norms = {"norms": "BatchNorm2d"}

    assert advice(seen(norms, shape=(2, 3, 8, 8))) == {"norm_of_few"}
    assert seen(norms, shape=(16, 3, 8, 8)).is_silent
    assert seen({"norms": "LayerNorm"}, shape=(2, 8)).is_silent


def test_inputs_far_beyond_bytes_are_advised_where_no_norm_takes_them() -> None:
    assert advice(seen(lowest=-10.0, highest=4000.0)) == {"large_inputs"}
    assert seen(lowest=0.0, highest=255.0).is_silent


def test_targets_of_one_class_are_advised_unless_evaluations_tell_the_others_apart() -> None:
    assert advice(seen(commonest_share=0.96)) == {"one_class"}
    assert seen(commonest_share=0.6).is_silent

    story = seen(commonest_share=0.96, steps=150)
    story.says(0, Event(attempt=0, step=150, time=story.now, kind="validation", fields={"loss": 0.1, "accuracy": 0.99}))
    assert story.healthy(100).is_silent


def test_targets_of_one_class_are_nothing_where_the_loss_shows_that_the_others_are_told_apart() -> None:
    assert advice(seen(commonest_share=0.92, target_entropy=2.1)) == {"one_class"}, "a loss of 2.0"
    assert seen(commonest_share=0.92, target_entropy=4.0).is_silent


def test_a_transformer_without_clipping_and_warm_up_is_advised_after_a_while() -> None:
    story = a_run(facts=TRANSFORMER).healthy(199)
    assert story.is_silent

    story.healthy(1)
    assert advice(story) == {"no_clipping", "no_warmup"}
    assert story.only("config_advice").severity == "info"


def test_a_transformer_with_both_gets_no_advice() -> None:
    story = a_run(facts=TRANSFORMER).meanwhile(clipping=Clipping(max_norm=1.0), lr=(1e-5,)).healthy(10)

    assert not story.meanwhile(lr=(1e-3,)).healthy(300).of("config_advice")


def test_a_norm_that_an_engine_only_computed_is_no_clipping() -> None:
    story = a_run(facts=TRANSFORMER).meanwhile(clipping=Clipping(None, 2.0)).healthy(200)

    assert advice(story) == {"no_clipping", "no_warmup"}


def test_a_run_that_was_resumed_has_had_its_warm_up() -> None:
    groups = (Group("0", "AdamW", {"lr": 1e-3}),)
    story = scenario(ranks=1, visible=EVERYTHING, groups=groups, facts=TRANSFORMER, start_step=500)

    assert advice(story.healthy(300)) == {"no_clipping"}


def test_the_rate_of_a_run_that_was_resumed_is_known_to_work() -> None:
    groups = (Group("0", "AdamW", {"lr": 0.02}),)
    story = scenario(ranks=1, visible=EVERYTHING, groups=groups, start_step=500)
    story.step = 500

    assert advice(story.healthy(300)) == {"high_lr"}
    assert story.only("config_advice").severity == "info"


def test_a_rate_that_stays_tiny_is_told() -> None:
    assert advice(a_run().meanwhile(lr=(1e-9,)).healthy(200)) == {"low_lr"}


def test_all_advice_is_one_episode_told_twice_and_never_resolved() -> None:
    story = a_run("Adam", TRANSFORMER, weight_decay=0.01).healthy(500)

    episode = story.only("config_advice")
    assert (episode.num_findings, episode.is_open, episode.last.onset_step) == (2, True, 1)
    assert advice(story) == {"adam_l2", "no_clipping", "no_warmup"}


def test_what_was_told_at_the_start_is_not_told_again_without_more() -> None:
    assert a_run("Adam", weight_decay=0.01).healthy(300).only("config_advice").num_findings == 1


def test_a_restarted_daemon_does_not_tell_it_again(tmp_path: Path) -> None:
    groups = (Group("0", "Adam", {"lr": 1e-3, "weight_decay": 0.01}),)
    story = scenario(ranks=1, groups=groups, core=JournaledCore(tmp_path / "journal.db")).healthy(10)
    story.daemon_restarts().healthy(300)

    (episode,) = (episode for episode in story.job.episodes if episode.rule == "config_advice")
    assert (episode.rule, episode.num_findings, episode.is_open) == ("config_advice", 1, True)
    assert isinstance(story.core, JournaledCore)
    story.core.close()


def test_what_shows_after_a_while_is_advised_though_the_daemon_was_restarted(tmp_path: Path) -> None:
    groups = (Group("0", "Adam", {"lr": 1e-3, "weight_decay": 0.01}),)
    core = JournaledCore(tmp_path / "journal.db")
    story = scenario(ranks=1, visible=EVERYTHING, groups=groups, facts=TRANSFORMER, core=core).healthy(10)
    story.daemon_restarts().healthy(300)

    (episode,) = (episode for episode in story.job.episodes if episode.rule == "config_advice")
    assert set(episode.last.values) == {"adam_l2", "no_clipping"}
    core.close()


def test_abstains_when_nothing_is_known() -> None:
    assert scenario(groups=(), facts={}).healthy(300).is_silent


@pytest.mark.parametrize(("fact", "name"), [("keeps_gradients", "kept_gradients"), ("never_steps", "no_steps")])
def test_a_loop_that_forgets_a_call_is_advised(fact: str, name: str) -> None:
    story = a_run(facts={fact: True})

    assert name in advice(story.plays(10))


@pytest.mark.parametrize(
    ("loss", "accuracy", "is_twice"),
    [(1.51, 0.95, True), (0.3, 0.95, False), (1.86, 0.6, False)],
)
def test_a_second_softmax_that_no_module_shows_is_seen_in_loss_and_accuracy(
    loss: float, accuracy: float, is_twice: bool
) -> None:
    """Ten classes: probabilities have a loss of 1.46 at least. A model that is right less often may have any loss."""
    story = a_run(facts={"num_classes": 10.0})
    for step in range(1, 9):
        story.plays(50, loss=loss)
        fields = {"loss": loss, "accuracy": accuracy}
        story.says(0, Event(attempt=0, step=50 * step, time=story.now, kind="validation", fields=fields))
    story.plays(5, loss=loss)

    assert ("softmax_twice" in {name for e in story.of("config_advice") for name in e.last.values}) is is_twice
