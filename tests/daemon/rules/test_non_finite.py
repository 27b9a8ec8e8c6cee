"""non_finite: when it speaks, how urgently, and whom it names."""

import functools

import pytest

from caboose_daemon.rules.non_finite import NonFiniteConfig
from caboose_wire import Batch, Module, Scaler
from support.ranks import LAYERS, a_report
from support.scenario import INF, NAN
from support.scenario import scenario as of_all_rules
from support.summaries import lacks

scenario = functools.partial(of_all_rules, about="non_finite")


def test_is_silent_while_every_number_is_finite_however_large() -> None:
    story = scenario().losses(1e-30, 2.0, 1e30, 3.4e38, -1e30)

    assert not story.of("non_finite")


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_speaks_at_the_first_loss_that_is_not_finite(value: float) -> None:
    story = scenario().nan_loss(1, at=10, value=value)

    episode = story.only("non_finite")
    assert (episode.first.step, episode.first.onset_step) == (10, 10)
    assert episode.is_open


@pytest.mark.parametrize("value", [NAN, INF])
def test_speaks_at_the_first_gradient_that_is_not_finite(value: float) -> None:
    story = scenario().nan_gradient(2, at=10, value=value)

    assert story.only("non_finite").first.step == 10


# Severity


def test_one_bad_step_seen_in_one_place_is_a_warning() -> None:
    assert scenario().nan_loss(1, at=10).only("non_finite").severity == "warning"
    assert scenario().nan_gradient(1, at=10).only("non_finite").severity == "warning"


def test_a_second_bad_step_makes_it_critical() -> None:
    assert scenario().nan_loss(1, at=10, steps=2).only("non_finite").severity == "critical"


def test_a_second_bad_step_soon_after_makes_it_critical() -> None:
    assert scenario().nan_loss(1, at=10).nan_loss(2, at=13).only("non_finite").severity == "critical"


def test_loss_and_gradient_are_two_witnesses_and_critical_at_once() -> None:
    story = scenario().nan_loss(1, at=10, spreads=True)

    assert story.only("non_finite").first.severity == "critical"


@pytest.mark.parametrize("ceiling", ["info", "warning"])
def test_is_never_more_urgent_than_configured(ceiling: str) -> None:
    rules = {"non_finite": NonFiniteConfig(severity=ceiling)}  # type: ignore[arg-type]  # a parametrised literal

    assert scenario(rules=rules).nan_loss(1, at=10, steps=5, spreads=True).only("non_finite").severity == ceiling


# One cause, one episode


def test_one_nan_is_one_episode_however_long_it_lasts() -> None:
    story = scenario().nan_loss(1, at=10).nan_loss(0, 1, 2, 3, at=11, steps=200, spreads=True)

    episode = story.only("non_finite")
    assert episode.num_findings == 201
    assert (episode.first.onset_step, episode.last.onset_step, episode.last.step) == (10, 10, 210)


def test_stays_open_until_three_steps_in_a_row_are_finite() -> None:
    assert scenario().nan_loss(1, at=10).healthy(2).only("non_finite").is_open

    episode = scenario().nan_loss(1, at=10).healthy(3).only("non_finite")
    assert not episode.is_open
    assert episode.last.state == "resolved"
    assert episode.severity == "warning"


def test_a_nan_before_the_calm_is_over_belongs_to_the_same_episode() -> None:
    story = scenario().nan_loss(1, at=10).nan_loss(2, at=13).healthy(3)

    assert story.only("non_finite").last.state == "resolved"


def test_a_nan_after_the_calm_is_a_new_episode() -> None:
    story = scenario().nan_loss(1, at=10).nan_loss(2, at=20).healthy(3)

    assert [episode.first.onset_step for episode in story.of("non_finite")] == [10, 20]


# Origin


def test_a_loss_that_went_wrong_on_one_of_64_ranks_names_that_rank_and_the_forward() -> None:
    finding = scenario(ranks=64).nan_loss(17, at=10, spreads=True).only("non_finite").first

    assert (finding.ranks, finding.layers, finding.phase) == ((17,), (), "forward")
    assert lacks(finding.summary, "loss is nan", "step 10", "in the forward on rank 17") == []
    assert finding.values["ranks_with_bad_loss"] == 1


def test_a_gradient_that_went_wrong_before_the_reduction_names_rank_and_layer() -> None:
    everything = range(len(LAYERS))
    story = scenario(ranks=8).nan_gradient(*everything, at=10, local={3: (0, 1, 2)})

    finding = story.only("non_finite").first
    assert (finding.ranks, finding.layers, finding.phase) == ((3,), ("blocks.2.weight",), "backward")
    assert lacks(finding.summary, "step 10", "rank 3, layer blocks.2.weight") == []


def test_a_local_gradient_alone_is_enough() -> None:
    finding = scenario(ranks=8).nan_gradient(at=10, local={5: (1,)}).only("non_finite").first

    assert (finding.ranks, finding.layers) == ((5,), ("blocks.1.weight",))


def test_several_ranks_at_once_are_all_named() -> None:
    finding = scenario(ranks=8).nan_gradient(0, at=10, local={6: (0,), 2: (0,)}).only("non_finite").first

    assert finding.ranks == (2, 6)
    assert "ranks 2, 6" in finding.summary


def test_a_long_list_of_ranks_is_cut_in_the_summary_only() -> None:
    finding = scenario(ranks=12).nan_loss(*range(12), at=10).only("non_finite").first

    assert finding.ranks == tuple(range(12))
    assert finding.summary.endswith("on ranks 0, 1, 2, 3, 4, 5, 6, 7 and 4 more")


def test_a_gradient_seen_only_after_the_reduction_names_the_layer_and_leaves_the_rank_open() -> None:
    finding = scenario(ranks=8).nan_gradient(0, 1, at=10).only("non_finite").first

    assert (finding.ranks, finding.layers, finding.phase) == ((), ("blocks.1.weight",), "backward")
    assert "on unknown rank, layer blocks.1.weight" in finding.summary
    assert finding.values["layers_with_bad_gradient"] == 2


def test_the_origin_stays_what_it_was_when_everything_is_nan() -> None:
    story = scenario(ranks=8).nan_loss(3, at=10).nan_loss(*range(8), at=11, steps=20, spreads=True)

    last = story.only("non_finite").last
    assert (last.ranks, last.phase, last.onset_step) == ((3,), "forward", 10)
    began = {"was_looked_into": 0.0, "loss_is_infinite": 0.0}
    assert last.values == {"ranks_with_bad_loss": 8.0, "layers_with_bad_gradient": 4.0, "steps": 21.0, **began}


# The loss that stands at zero


def test_a_loss_that_stands_at_zero_for_three_steps_is_a_hidden_nan() -> None:
    assert scenario().zero_loss(at=10, steps=2).is_silent

    finding = scenario().zero_loss(at=10, steps=3).only("non_finite").first
    assert (finding.step, finding.onset_step, finding.severity) == (12, 10, "critical")
    assert "exactly 0.0 for 3 steps" in finding.summary


def test_a_stuck_zero_is_one_episode_and_ends_with_it() -> None:
    stuck = scenario().zero_loss(at=10, steps=100)
    assert stuck.only("non_finite").num_findings == 98

    (episode,) = stuck.healthy(3).of("non_finite")
    assert episode.last.state == "resolved"


def test_the_number_of_zero_steps_can_be_configured() -> None:
    rules = {"non_finite": NonFiniteConfig(zero_steps=5)}

    assert scenario(rules=rules).zero_loss(at=10, steps=4).is_silent
    assert not scenario(rules=rules).zero_loss(at=10, steps=5).is_silent


def test_a_zero_now_and_then_is_nothing() -> None:
    assert scenario().losses(*[1.0, 0.0, 0.0, 1.0] * 20).is_silent


def test_a_loss_that_was_never_positive_may_be_zero() -> None:
    assert scenario().losses(*[0.0] * 50).is_silent
    assert scenario().losses(*[-1.0] * 10, *[0.0] * 50).is_silent


# Blindness


def test_abstains_when_the_job_shows_no_loss() -> None:
    story = scenario(visible=("gradients",)).nan_loss(1, at=10, steps=5, spreads=True)

    assert story.is_silent
    assert story.job.attempt is not None
    assert "non_finite" in story.job.attempt.engine.abstaining(story.job.visible)


def test_says_nothing_of_steps_without_loss_and_gradients() -> None:
    story = scenario(ranks=1).healthy(5)
    for step in range(6, 30):
        story.says(0, a_report(step, loss=None, arrays={})).wait(0.5)

    assert story.job.num_steps == 29
    assert story.is_silent


def test_a_layer_without_gradient_is_not_a_bad_one() -> None:
    assert scenario().nan_gradient(1, 2, at=10, value=-1.0).is_silent


# Closer looks

MODULES = (Module("stem", "Linear"), Module("relu", "ReLU"), Module("head", "Linear"))
FINE = {"activation_max": [1.0, 2.0, 3.0], "activation_order": [0, 1, 2], "weight_norm": [1.0] * 4}


def bad_at(*rows: int, value: float = NAN) -> list[float]:
    return [value if row in rows else 1.0 for row in range(3)]


def test_the_first_module_in_the_order_of_execution_is_the_origin() -> None:
    story = scenario(modules=MODULES).sampled(**FINE)
    story.meanwhile(loss=lambda rank: NAN if rank == 2 else 2.0)
    arrays = {"activation_max": lambda rank: bad_at(0, 1) if rank == 2 else bad_at(), "activation_order": [2, 0, 1]}

    finding = story.sampled(**arrays).only("non_finite").first
    assert (finding.ranks, finding.layers, finding.phase) == ((2,), ("relu",), "forward")


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_an_order_of_execution_that_is_no_number_counts_as_unknown(value: float) -> None:
    story = scenario(modules=MODULES).sampled(**FINE).meanwhile(loss=NAN)

    finding = story.sampled(activation_max=bad_at(1), activation_order=[value] * 3).only("non_finite").first

    assert (finding.ranks, finding.layers) == ((0, 1, 2, 3), ("relu",))


def test_keeps_what_was_known_when_it_began() -> None:
    batch = Batch(index=1, num_bad=0, lowest=-1.0, highest=1.0)
    story = scenario(modules=MODULES).sampled(**FINE).meanwhile(batch=batch).nan_loss(2, at=2, value=INF)

    story.nan_loss(0, 1, 2, 3, at=3, steps=5, spreads=True)

    values = story.only("non_finite").last.values
    known = ("was_looked_into", "bad_inputs", "loss_is_infinite", "largest_activation")
    assert [values[name] for name in known] == [0.0, 0.0, 1.0, 3.0]


def test_a_bad_activation_is_a_warning_before_loss_and_gradient_show_it() -> None:
    story = scenario(modules=MODULES).sampled(**FINE).sampled(**{**FINE, "activation_max": bad_at(1)})

    episode = story.only("non_finite")
    assert (episode.severity, episode.first.layers, episode.first.phase) == ("warning", ("relu",), "forward")

    story.healthy(1).nan_loss(0, 1, 2, 3, at=4, spreads=True)
    (episode,) = story.of("non_finite")
    assert episode.severity == "critical"
    assert episode.last.values["steps_before_loss"] == 2


@pytest.mark.parametrize("value", [NAN, INF])
def test_scores_that_are_masked_by_design_are_nothing(value: float) -> None:
    masked = {**FINE, "activation_max": bad_at(1, value=value)}

    assert scenario(modules=MODULES).sampled(10, **masked).is_silent


def test_what_came_to_nothing_is_not_told_twice() -> None:
    story = scenario(modules=MODULES).sampled(**FINE)
    for _ in range(5):
        story.sampled(**{**FINE, "activation_max": bad_at(1)}).healthy(5)

    episode = story.only("non_finite")
    assert (episode.severity, episode.last.state) == ("warning", "resolved")


def test_a_closer_look_after_the_onset_names_the_module_while_the_weights_are_good() -> None:
    story = scenario(modules=MODULES).sampled(**FINE).nan_loss(1, at=5)
    story.meanwhile(loss=lambda rank: NAN if rank == 1 else 2.0)
    story.sampled(**{**FINE, "activation_max": lambda rank: bad_at(2) if rank == 1 else bad_at()})

    assert story.only("non_finite").first.layers == ()
    assert story.only("non_finite").last.layers == ("head",)


def test_a_closer_look_after_the_onset_names_nothing_once_the_weights_are_bad() -> None:
    story = scenario(modules=MODULES).sampled(**FINE).nan_loss(1, at=5).meanwhile(loss=NAN)
    story.sampled(activation_max=bad_at(0, 1, 2), activation_order=[0, 1, 2], weight_norm=[NAN] * 4)

    assert story.only("non_finite").last.layers == ()


def test_weights_that_went_bad_alone_name_the_update() -> None:
    story = scenario(modules=MODULES).sampled(**{**FINE, "weight_norm": [1.0, INF, 1.0, 1.0]})

    finding = story.only("non_finite").first
    assert (finding.severity, finding.layers, finding.phase) == ("warning", ("blocks.1.weight",), "update")
    assert story.nan_loss(0, 1, 2, 3, at=2).only("non_finite").severity == "critical"
    assert story.only("non_finite").last.values["steps_before_loss"] == 1
    assert story.only("non_finite").last.phase == "update"


def test_a_batch_with_bad_elements_behind_a_bad_loss_names_the_input_and_the_batch() -> None:
    story = scenario().healthy(5)
    story.meanwhile(batch=lambda rank: Batch(index=70 + rank, num_bad=5 if rank == 3 else 0)).nan_loss(3, at=6)

    (episode,) = story.of("non_finite")
    finding = episode.first
    assert (finding.ranks, finding.phase) == ((3,), "input")
    assert lacks(finding.summary, "rank 3", "batch 73", "5 NaN") == []


def test_bad_elements_that_the_model_masks_are_nothing() -> None:
    assert not scenario().meanwhile(batch=Batch(index=1, num_bad=5)).healthy(20).of("non_finite")


# The scaler's search


def test_gradients_of_steps_that_the_scaler_skips_are_counted_and_no_finding() -> None:
    story = scenario().meanwhile(scaler=Scaler(65536.0, 0)).healthy(3)
    for skipped in range(1, 6):
        story.meanwhile(scaler=Scaler(65536.0 / 2**skipped, skipped)).nan_gradient(0, 1, at=3 + skipped, value=INF)
    assert not story.of("non_finite")

    story.nan_gradient(0, at=9)
    assert story.only("non_finite").first.values["skipped_steps"] == 5


def test_a_scale_that_falls_shows_the_skip_that_a_fused_optimizer_hides() -> None:
    story = scenario().meanwhile(scaler=Scaler(65536.0)).healthy(3).meanwhile(scaler=Scaler(32768.0))

    assert story.nan_gradient(0, at=4, value=INF).is_silent


def test_a_bad_loss_is_told_also_when_the_scaler_skips_the_step() -> None:
    story = scenario().meanwhile(scaler=Scaler(65536.0, 0)).healthy(3).meanwhile(scaler=Scaler(32768.0, 1))

    assert story.nan_loss(1, at=4, spreads=True).only("non_finite").severity == "warning"
    assert story.nan_loss(1, at=5, spreads=True).only("non_finite").severity == "critical"
