"""frozen_parameters: what should learn and does not, and what only rests."""

import functools
from pathlib import Path
from typing import Any

import pytest

from caboose_daemon.config import Config
from caboose_daemon.rules.frozen_parameters import FrozenParametersConfig
from caboose_wire import Group, Layer, Scaler
from support.ranks import EVERYTHING
from support.scenario import JournaledCore, Scenario
from support.scenario import scenario as of_all_rules
from support.summaries import lacks

scenario = functools.partial(of_all_rules, about="frozen_parameters")

NAMES = ("stem.weight", "stem.bias", "body.weight", "head.weight")
QUICK = {"frozen_parameters": FrozenParametersConfig(window_steps=10)}


def layers(**changes: dict[str, Any]) -> tuple[Layer, ...]:
    return tuple(
        Layer(**{"name": n, "numel": 100, "kind": "Linear", **changes.get(n.split(".")[0], {})}) for n in NAMES
    )


def a_net(*norms: float, **settings: Any) -> Scenario:
    fields = {"layers": layers(), "visible": EVERYTHING, "rules": QUICK, "norms": norms or (1.0,) * 4}
    return scenario(ranks=2, **{**fields, **settings})


# Without a gradient


@pytest.mark.parametrize("norm", [-1.0, 0.0], ids=["none", "exactly zero"])
def test_speaks_when_a_layer_had_no_gradient_over_the_window(norm: float) -> None:
    story = a_net(1.0, 1.0, norm, 1.0)
    assert story.healthy(9).is_silent

    episode = story.healthy(1).only("frozen_parameters")
    assert (episode.severity, episode.first.layers, episode.first.onset_step) == ("warning", ("body.weight",), 1)
    assert lacks(episode.first.summary, "1 of 4 layers without gradient", "body.weight") == []


def rarely(story: Scenario, times: int, every: int = 16) -> Scenario:
    """Norms are taken on one step of so many, as where steps are short."""
    for _ in range(times):
        story.healthy(1).plays(every - 1, arrays={})
    return story


def test_a_window_of_few_norms_is_one_where_they_are_taken_rarely() -> None:
    defaults = {"frozen_parameters": FrozenParametersConfig()}
    story = rarely(a_net(1.0, 1.0, -1.0, 1.0, rules=defaults), 9)
    assert story.is_silent, "144 steps, but nine norms"

    assert rarely(story, 2).only("frozen_parameters").first.layers == ("body.weight",)
    assert rarely(a_net(rules=defaults), 12).is_silent


def test_the_layer_next_to_the_cut_is_named_first() -> None:
    episode = a_net(-1.0, -1.0, -1.0, 1.0).healthy(20).only("frozen_parameters")

    assert episode.first.layers == ("body.weight", "stem.bias", "stem.weight")


def test_a_layer_that_is_fed_zeros_is_behind_the_cut() -> None:
    """The units before it are dead: its bias still has a gradient, and what is before them has none."""
    names = ("first.weight", "first.bias", "second.weight", "second.bias", "head.weight")
    table = tuple(Layer(name=name, numel=100, kind="Linear") for name in names)
    dead = {"layers": table, "norms": (0.0, 0.0, 0.0, 1.0, 1.0)}
    assert a_net(**dead).healthy(20).only("frozen_parameters").first.layers == ("first.weight", "second.weight")

    cut = {"layers": table, "norms": (0.0, 0.0, 0.0, 0.0, 1.0)}
    assert a_net(**cut).healthy(20).only("frozen_parameters").first.layers == ("second.weight", "first.weight")


def test_ends_with_the_first_gradient() -> None:
    story = a_net(1.0, 1.0, -1.0, 1.0).healthy(20).gradients(1.0, 1.0, 1e-9, 1.0).healthy(1)

    assert story.only("frozen_parameters").last.state == "resolved"


def test_a_gradient_however_small_or_bad_is_one() -> None:
    assert a_net(1.0, 1.0, 1e-30, 1.0).healthy(30).is_silent
    assert not a_net(1.0, 1.0, float("nan"), 1.0).healthy(30).of("frozen_parameters")


def test_what_was_frozen_on_purpose_is_not_looked_at() -> None:
    assert a_net(1.0, 1.0, -1.0, 1.0, layers=layers(body={"trainable": False})).healthy(50).is_silent


def test_what_rests_and_comes_back_within_the_longer_window_is_healthy() -> None:
    story = a_net().healthy(1)
    for _ in range(5):
        story.gradients(1.0, 1.0, -1.0, 1.0).healthy(99).gradients(1.0, 1.0, 1.0, 1.0).healthy(1)
    assert story.is_silent

    assert story.gradients(1.0, 1.0, -1.0, 1.0).healthy(100).of("frozen_parameters")


def test_under_several_optimizers_the_window_is_longer() -> None:
    groups = (Group("0.0", "Adam", {"lr": 1e-3}), Group("1.0", "Adam", {"lr": 1e-3}))

    assert a_net(1.0, 1.0, -1.0, 1.0, groups=groups).healthy(99).is_silent


def test_layers_without_gradient_that_are_a_part_of_an_optimizer_are_in_no_turn() -> None:
    def groups(first: int, second: int) -> tuple[Group, ...]:
        return tuple(
            Group(f"{number}.0", kind, {"lr": 1e-3}, num_parameters=size)
            for number, (kind, size) in enumerate((("Muon", first), ("AdamW", second)))
        )

    whole = a_net(1.0, 1.0, -1.0, 1.0, groups=groups(100, 300)).healthy(20)
    part = a_net(1.0, 1.0, -1.0, 1.0, groups=groups(200, 200)).healthy(20)
    assert whole.is_silent, "all of the first optimizer's layers rest"
    assert part.only("frozen_parameters").first.layers == ("body.weight",)


def test_experts_that_no_batch_has_chosen_are_healthy() -> None:
    names = tuple(Layer(f"moe.experts.{i}.weight", 100, "Linear") for i in range(4))

    assert a_net(1.0, 1.0, -1.0, 0.0, layers=names).healthy(300).is_silent


def test_a_teacher_that_follows_by_averaging_is_healthy() -> None:
    table = tuple(Layer(f"{part}.fc.weight", 100, "Linear", held=part == "student") for part in ("student", "teacher"))

    assert a_net(1.0, -1.0, layers=table).healthy(50).is_silent


def test_an_exact_zero_of_a_bias_is_the_structure_of_the_net() -> None:
    assert a_net(1.0, 0.0, 1.0, 1.0).healthy(50).is_silent
    assert a_net(1.0, -1.0, 1.0, 1.0).healthy(50).of("frozen_parameters")


def test_steps_without_any_gradient_do_not_count() -> None:
    assert a_net(0.0, 0.0, 0.0, 0.0).healthy(50).is_silent


def test_a_restarted_daemon_goes_on_with_the_same_episode(tmp_path: Path) -> None:
    story = a_net(
        1.0, 1.0, -1.0, 1.0, core=JournaledCore(tmp_path / "journal.db", Config(rules={**Config().rules, **QUICK}))
    )
    story.healthy(20).daemon_restarts().healthy(20)

    (episode,) = (episode for episode in story.job.episodes if episode.rule == "frozen_parameters")
    assert (episode.rule, episode.is_open, episode.first.onset_step) == ("frozen_parameters", True, 1)
    assert isinstance(story.core, JournaledCore)
    story.core.close()


# Held by no optimizer


def test_a_layer_that_no_optimizer_holds_is_a_warning() -> None:
    episode = a_net(1.0, 1.0, -1.0, 1.0, layers=layers(body={"held": False})).healthy(10).only("frozen_parameters")

    assert (episode.severity, episode.first.layers) == ("warning", ("body.weight",))
    assert episode.first.values["not_held"] == 1


def test_where_only_a_head_is_trained_it_is_an_information() -> None:
    table = layers(stem={"held": False}, body={"held": False})

    assert a_net(-1.0, -1.0, -1.0, 1.0, layers=table).healthy(30).only("frozen_parameters").severity == "info"


def test_where_most_of_the_model_is_left_out_from_the_middle_it_is_a_warning() -> None:
    """The optimizer was given the first and the last layer, and the others were forgotten."""
    table = tuple(
        Layer(f"{part}.weight", 100, "Linear", held=part in ("layer1", "head"))
        for part in ("layer1", "layer2", "layer3", "layer4", "head")
    )
    story = a_net(1.0, -1.0, -1.0, -1.0, 1.0, layers=table).healthy(30)
    assert story.only("frozen_parameters").severity == "warning"

    declared = a_net(1.0, -1.0, -1.0, -1.0, 1.0, layers=table, config={"trained_in_part": True}).healthy(30)
    assert declared.only("frozen_parameters").severity == "info"


def test_a_part_of_the_end_that_no_optimizer_holds_is_a_warning() -> None:
    table = layers(body={"held": False, "numel": 1000}, head={"held": False})

    assert a_net(1.0, 1.0, -1.0, -1.0, layers=table).healthy(30).only("frozen_parameters").severity == "warning"


# Updates of exactly zero


def moving(story: Scenario, looks: int, ratio: float) -> Scenario:
    return story.sampled(looks, update_ratio=[1e-3, 1e-3, ratio, 1e-3])


def test_speaks_when_the_weights_did_not_move_at_five_samples() -> None:
    story = moving(a_net(), 4, 0.0)
    assert story.is_silent

    finding = moving(story, 1, 0.0).only("frozen_parameters").first
    assert (finding.layers, finding.values["never_moves"]) == (("body.weight",), 1)
    assert moving(story, 1, 1e-9).only("frozen_parameters").last.state == "resolved"


def test_a_rate_of_zero_or_one_that_has_decayed_moves_nothing() -> None:
    assert moving(a_net().meanwhile(lr=(0.0,)), 20, 0.0).is_silent
    assert moving(a_net().healthy(30).meanwhile(lr=(1e-5,)), 20, 0.0).is_silent


def test_steps_that_the_scaler_skips_move_nothing() -> None:
    story = a_net()
    for skipped in range(1, 20):
        moving(story.meanwhile(scaler=Scaler(65536.0, skipped)), 1, 0.0)

    assert not story.of("frozen_parameters")


def test_biases_norms_and_embeddings_may_stand_still() -> None:
    table = layers(body={"kind": "Embedding"})

    assert moving(a_net(layers=table), 20, 0.0).is_silent


# Blindness


def test_abstains_without_gradients_and_on_layers_nobody_looked_at() -> None:
    assert a_net(1.0, 1.0, -1.0, 1.0, visible=("loss",)).healthy(50).is_silent
    assert a_net(1.0, 1.0, -2.0, 1.0).healthy(50).is_silent


def test_a_long_noisy_healthy_run_is_silent() -> None:
    assert a_net(noise=0.5).healthy(1000).of("frozen_parameters") == []
