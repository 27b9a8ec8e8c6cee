"""loss_spike: what is high, how urgent it is, what becomes of it, and what is never learned."""

import functools
import math
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from caboose_daemon.config import Config
from caboose_daemon.rules.loss_spike import LINGERING_STEPS, NORM_LEAD_STEPS, LossSpikeConfig
from caboose_wire import Event
from support.curves import Watch, flat, noisy, power_law, views
from support.ranks import a_report
from support.scenario import NAN, JournaledCore, watching
from support.scenario import scenario as of_all_rules
from support.seeds import seeds
from support.summaries import lacks

scenario = functools.partial(of_all_rules, about="loss_spike")

SWINGING = (1.9, 2.1) * 20
"""A level of 2.0 with second differences of 0.4: a scale of about 0.2."""


# The threshold


def test_is_silent_up_to_the_ratio_and_speaks_above_it() -> None:
    calm = scenario().healthy(40)

    assert calm.losses(2.499).is_silent
    assert calm.losses(2.501).only("loss_spike").first.step == 42


def test_is_silent_up_to_six_scales_and_speaks_above_them() -> None:
    values = scenario().losses(*SWINGING, 20.0).only("loss_spike").first.values
    level, scale = values["level"], values["scale"]
    assert (level, scale) == (pytest.approx(2.0, abs=0.1), pytest.approx(0.2, rel=0.1))

    assert scenario().losses(*SWINGING, level + 5.9 * scale).is_silent
    assert scenario().losses(*SWINGING, level + 6.1 * scale).only("loss_spike").first.step == 41


@pytest.mark.parametrize(("num_samples", "is_silent"), [(64, False), (40, False), (4, True)])
def test_the_short_last_batch_of_an_epoch_may_scatter_more(num_samples: int, is_silent: bool) -> None:
    story = scenario(ranks=1).meanwhile(num_samples=64).losses(*SWINGING)
    story.meanwhile(num_samples=num_samples).losses(4.0)
    assert story.is_silent is is_silent

    story.meanwhile(num_samples=64).losses(*SWINGING)
    assert len(story.losses(20.0).of("loss_spike")) == 1 + (not is_silent), "a usual batch is judged as before"


def test_is_silent_up_to_twice_what_this_runs_own_outliers_reach() -> None:
    daily = [3.0 if i % 25 == 0 else 2.0 + 0.05 * (-1) ** i for i in range(1000)]
    used_to_it = scenario(ranks=1).losses(*daily)
    told = len(used_to_it.of("loss_spike"))
    assert told < 20, "what a run does every day is its nature"

    assert len(used_to_it.losses(3.0).healthy(5).of("loss_spike")) == told
    assert len(used_to_it.losses(6.0).of("loss_spike")) == told + 1


def test_both_thresholds_can_be_configured() -> None:
    patient = {"loss_spike": LossSpikeConfig(ratio=3.0)}
    assert scenario(rules=patient).loss_spike(at=41, height=2.9).is_silent
    assert not scenario(rules=patient).loss_spike(at=41, height=3.1).is_silent

    numb = {"loss_spike": LossSpikeConfig(scales=20.0)}
    assert scenario(rules=numb).losses(*SWINGING, 5.5).is_silent
    assert not scenario(rules=numb).losses(*SWINGING, 6.5).is_silent

    deaf = {"loss_spike": LossSpikeConfig(tails=9.0)}  # times 2.33, what one normal value in a hundred exceeds
    assert scenario(rules=deaf).losses(*SWINGING, 5.5).is_silent
    assert not scenario(rules=deaf).losses(*SWINGING, 6.8).is_silent


def test_judges_nothing_before_it_has_learned_the_level() -> None:
    assert scenario().loss_spike(at=20, height=10.0).is_silent
    assert not scenario().loss_spike(at=21, height=10.0).is_silent


def test_a_spike_during_the_warm_up_does_not_spoil_the_level() -> None:
    story = scenario().loss_spike(at=5, height=100.0).healthy(15)

    assert story.healthy(200).is_silent
    assert story.losses(2000.0).only("loss_spike").first.values["level"] == pytest.approx(2.0)


def test_a_loss_below_zero_is_judged_by_scales_alone() -> None:
    below = (-2.1, -1.9) * 20

    assert scenario().losses(*below, -1.5).is_silent
    assert not scenario().losses(*below, -0.5).is_silent


def test_a_steep_first_fall_does_not_blind_it_for_what_comes_after() -> None:
    fall = [2.3 + 2.0 * math.exp(-i / 12) + 0.05 * math.sin(i) for i in range(60)]

    assert scenario().losses(*fall).is_silent
    assert scenario().losses(*fall, 5.3).only("loss_spike").first.step == 61


def test_a_falling_loss_is_no_spike() -> None:
    assert scenario().losses(*(10.0 * 0.97**i for i in range(300))).is_silent


# Severity


def test_one_high_step_below_twice_the_level_is_an_outlier_and_for_the_record_only() -> None:
    assert scenario().loss_spike(at=41, height=1.99).healthy(20).only("loss_spike").severity == "info"
    assert scenario().loss_spike(at=41, height=2.01).healthy(20).only("loss_spike").severity == "warning"


def test_the_height_at_which_one_step_is_a_warning_can_be_configured() -> None:
    rules = {"loss_spike": LossSpikeConfig(outlier_ratio=5.0)}

    assert scenario(rules=rules).loss_spike(at=41, height=4.9).only("loss_spike").severity == "info"
    assert scenario(rules=rules).loss_spike(at=41, height=5.1).only("loss_spike").severity == "warning"


def test_a_second_high_step_makes_a_low_one_a_warning() -> None:
    assert scenario().loss_spike(at=41, height=1.5, steps=2).only("loss_spike").severity == "warning"


def test_one_step_far_above_is_a_warning() -> None:
    episode = scenario().loss_spike(at=41, height=3.0).only("loss_spike")

    assert episode.severity == "warning"
    assert episode.first.state == "open"
    assert lacks(episode.first.summary, "6 against 2 before step 41") == []


def test_stays_a_warning_for_two_high_steps_and_is_critical_at_the_third() -> None:
    assert scenario().loss_spike(at=41, height=3.0, steps=2).only("loss_spike").severity == "warning"
    assert scenario().loss_spike(at=41, height=3.0, steps=3).only("loss_spike").severity == "critical"


def test_a_jump_of_the_gradient_norm_is_a_second_witness_and_critical_with_a_second_high_step() -> None:
    first = scenario().loss_spike(at=41, height=1.5, grad_height=10.0).only("loss_spike").first
    assert first.severity == "warning"
    assert lacks(first.summary, "gradient norm jumped") == []

    assert scenario().loss_spike(at=41, height=1.5, steps=2, grad_height=10.0).only("loss_spike").severity == "critical"


def test_an_outlier_batch_with_a_high_norm_that_is_over_at_the_next_step_never_pages() -> None:
    story = scenario(noise=0.02)
    for at in range(41, 1041, 100):
        story.loss_spike(at=at, height=4.0, grad_height=20.0)

    assert {str(episode.severity) for episode in story.healthy(5).episodes} == {"warning"}


@pytest.mark.slow
@pytest.mark.long
def test_next_to_nothing_of_what_was_gained_never_pages() -> None:
    """Ten times the level, but the run has come down from 2.3."""
    down = (2.3 * np.exp(-np.arange(1500) / 150) + 1e-3).tolist()

    assert scenario().losses(*down, *[0.03] * 20).only("loss_spike").severity == "warning"
    assert scenario().losses(*down, *[0.1] * 20).only("loss_spike").severity == "warning"
    assert scenario().losses(*down, *[0.15] * 20).only("loss_spike").severity == "critical"


def test_single_losses_far_above_others_near_zero_do_not_page() -> None:
    """A task that is solved: most batches have no wrong sample, and some have one."""
    down = (2.3 * np.exp(-np.arange(600) / 60) + 1e-4).tolist()
    mixed = [0.2 if step % 4 == 0 else 1e-4 * (1 + step % 3) for step in range(40)]

    assert "critical" not in {episode.severity for episode in scenario().losses(*down, *mixed).of("loss_spike")}


def test_one_batch_with_a_wrong_sample_is_no_warning_while_most_of_what_was_learned_is_kept() -> None:
    """Of a live run every batch is seen: one of eight samples that is wrong makes the loss many times the usual one."""
    down = 2.0 * np.exp(-np.arange(300) / 40) + 0.02

    for height, severity in ((0.8, "info"), (2.5, "warning")):
        once = down + height * (np.arange(300) == 250)
        assert Watch("loss_spike").over(views(noisy(once, 0.1))).only().severity == severity


@pytest.mark.parametrize("shift", [0.0, -3000.0])
def test_a_log_likelihood_is_judged_like_the_same_curve_above_zero(shift: float) -> None:
    """From 4,500 to 1,500, with a noise of 3; and the same below zero."""
    at = np.arange(1500)
    base = 3000 * np.exp(-at / 150) + 1500 + 3 * np.random.default_rng(0).standard_normal(1500) + shift

    assert Watch("loss_spike").over(views(base + 60.0 * (at == 1400))).is_silent, "20 scales, and 4 % of the level"
    assert Watch("loss_spike").over(views(base + 1000.0 * (at == 1400))).only().severity == "info"
    assert Watch("loss_spike").over(views(base + 4000.0 * (at == 1400))).only().severity == "warning"
    assert Watch("loss_spike").over(views(base + 1000.0 * (at >= 1400))).only().severity == "critical"


def test_a_jump_of_the_gradient_norm_alone_is_nothing() -> None:
    assert scenario().loss_spike(at=41, height=1.0, grad_height=100.0).healthy(20).is_silent


def test_the_norm_counts_as_a_witness_a_few_steps_before_the_loss_but_not_longer() -> None:
    jumped = scenario().loss_spike(at=41, height=1.0, grad_height=10.0)
    assert jumped.loss_spike(at=41 + NORM_LEAD_STEPS, height=1.5).only("loss_spike").severity == "warning"

    jumped = scenario().loss_spike(at=41, height=1.0, grad_height=10.0)
    assert jumped.loss_spike(at=42 + NORM_LEAD_STEPS, height=1.5).only("loss_spike").severity == "info"


def test_a_norm_that_doubles_is_no_witness() -> None:
    assert scenario().loss_spike(at=41, height=1.5, grad_height=1.9).only("loss_spike").severity == "info"


@pytest.mark.parametrize("ceiling", ["info", "warning"])
def test_is_never_more_urgent_than_configured(ceiling: str) -> None:
    rules = {"loss_spike": LossSpikeConfig(severity=ceiling)}  # type: ignore[arg-type]  # a parametrised literal

    story = scenario(rules=rules).loss_spike(at=41, height=9.0, steps=50, grad_height=50.0)

    assert story.only("loss_spike").severity == ceiling


# Recovery


def test_is_over_after_three_steps_near_the_old_level() -> None:
    story = scenario().loss_spike(at=41, height=3.0).healthy(2)
    assert story.only("loss_spike").is_open

    episode = story.healthy(1).only("loss_spike")
    assert not episode.is_open
    assert episode.last.state == "resolved"
    assert (episode.last.values["loss"], episode.last.values["peak"]) == (2, 6)


def test_says_nothing_more_after_the_recovery() -> None:
    story = scenario().loss_spike(at=41, height=3.0).healthy(3)
    told = len(story.core.sink.episodes)

    story.healthy(500)

    assert len(story.core.sink.episodes) == told


def test_a_relapse_before_the_calm_is_over_is_the_same_episode() -> None:
    story = scenario().loss_spike(at=41, height=3.0).loss_spike(at=44, height=3.0).healthy(3)

    assert story.only("loss_spike").num_findings == 7


# What is learned and what is not


def test_an_outlier_does_not_hide_the_next_one() -> None:
    story = scenario(noise=0.01).loss_spike(at=41, height=1000.0).loss_spike(at=52, height=1.5).healthy(5)

    assert [episode.first.step for episode in story.of("loss_spike")] == [41, 52]


def test_tall_outliers_do_not_move_the_level() -> None:
    story = scenario(noise=0.01)
    for at in range(41, 241, 10):
        story.loss_spike(at=at, height=50.0)

    assert [episode.first.step for episode in story.of("loss_spike")] == [41, 51, 61], "and the rest are its nature"
    story.loss_spike(at=241, height=90.0)
    assert story.of("loss_spike")[-1].first.step == 241
    assert story.of("loss_spike")[-1].first.values["level"] == pytest.approx(2.0, rel=0.05)


def test_a_spike_like_those_it_got_over_is_told_once_it_lasts_longer() -> None:
    story = scenario(noise=0.01)
    for at in range(141, 221, 20):
        story.loss_spike(at=at, height=3.0, steps=4)
    assert len(story.of("loss_spike")) == 3

    story.healthy(20).losses(*[6.0] * 30)
    episode = story.of("loss_spike")[-1]
    assert len(story.of("loss_spike")) == 4
    assert (episode.is_open, episode.severity) == (True, "critical")
    assert episode.first.step - episode.first.onset_step > 4


def test_a_divergence_is_never_learned_as_normal() -> None:
    rising = [3.0 * 1.01**i for i in range(200)]
    story = scenario(ranks=1).healthy(40).losses(*rising).losses(*[rising[-1]] * 500)

    episode = story.only("loss_spike")
    assert episode.is_open
    assert episode.severity == "critical"
    assert episode.last.values["level"] == pytest.approx(2.0)


def test_a_plateau_far_above_ends_only_when_the_loss_is_back() -> None:
    story = scenario(ranks=1).loss_spike(at=41, height=3.0, steps=300)
    assert story.only("loss_spike").is_open

    assert story.healthy(3).only("loss_spike").last.state == "resolved"


def test_a_loss_that_is_not_a_number_is_left_to_its_own_rule() -> None:
    story = of_all_rules(about="loss_spike non_finite").healthy(40).losses(NAN, NAN, NAN).healthy(10)

    assert story.only("non_finite")
    assert story.losses(20.0).of("loss_spike")[0].first.values["level"] == pytest.approx(2.0)


# Triage


def test_calls_a_spike_that_falls_recovering() -> None:
    story = scenario().healthy(40).losses(10.0, 9.0, 7.0, 5.0, 4.0, 3.0, 2.5, 2.0, 2.0, 2.0)

    assert story.states("loss_spike") == ["open"] * 3 + ["recovering"] * 6 + ["resolved"]


def test_calls_a_spike_that_stays_lingering() -> None:
    story = scenario().loss_spike(at=41, height=3.0, steps=LINGERING_STEPS)
    assert set(story.states("loss_spike")) == {"open"}

    assert story.losses(6.0).states("loss_spike")[-1] == "lingering"


def test_calls_a_loss_that_keeps_rising_diverging() -> None:
    story = scenario().healthy(40).losses(*(3.0 * 1.2**i for i in range(20)))

    assert story.states("loss_spike") == ["open"] * 5 + ["diverging"] * 15


# Declared changes


@pytest.mark.parametrize("kind", ["data_switch", "batch_ramp", "resume"])
def test_a_declared_change_begins_a_new_baseline(kind: str) -> None:
    story = scenario().healthy(40).declares(kind).losses(*[8.0] * 100)
    assert story.is_silent

    assert story.losses(16.0).only("loss_spike").first.values["level"] == pytest.approx(8.0)


def test_a_declared_change_holds_from_its_own_step_on_however_late_the_steps_before_it_arrive() -> None:
    story = scenario(ranks=2).healthy(40)
    for step in range(41, 71):
        story.says(0, a_report(step, loss=2.0))
    story.says(0, Event(attempt=0, step=70, time=story.now, kind="data_switch"))
    for step in range(71, 101):
        story.says(0, a_report(step, loss=8.0))
    for step in range(41, 101):
        story.says(1, a_report(step, loss=2.0 if step <= 70 else 8.0))
    story.wait(1.0)

    assert story.job.num_steps == 100
    assert story.is_silent


def test_an_undeclared_change_of_the_same_size_is_found() -> None:
    assert scenario().healthy(40).declares("checkpoint_saved").losses(8.0).only("loss_spike").is_open


def test_a_declared_change_ends_what_was_open() -> None:
    story = scenario().loss_spike(at=41, height=3.0, steps=5).declares("data_switch").losses(*[6.0] * 100)

    episode = story.only("loss_spike")
    assert episode.last.state == "resolved"


# Blindness


def test_abstains_when_the_job_shows_no_loss() -> None:
    assert scenario(visible=("gradients",)).loss_spike(at=41, height=9.0, steps=9).is_silent


def test_a_declared_change_is_judged_again_once_its_level_is_learned() -> None:
    story = scenario().healthy(40).declares("data_switch").losses(*[8.0] * 19, 16.0).healthy(1)
    assert story.is_silent

    story = scenario().healthy(40).declares("data_switch").losses(*[8.0] * 20, 20.0)
    assert story.only("loss_spike").first.step == 61


# A restart of the daemon


def test_goes_on_with_the_same_onset_and_level_after_a_restart() -> None:
    run = views(np.concatenate([flat(40), flat(60, 6.0), flat(10)]))
    watched = Watch("loss_spike").over(run, steps=60).restarted().over(run)

    episode = watched.only()
    assert (episode.first.onset_step, episode.last.step, episode.last.state) == (40, 102, "resolved")
    assert episode.last.values["level"] == pytest.approx(2.0)
    assert episode.severity == "critical"


# Long healthy runs


@pytest.mark.parametrize("seed", seeds(3))
@pytest.mark.parametrize("noise", [0.01, 0.1, 0.3])
def test_a_long_noisy_healthy_run_is_not_told(seed: int, noise: float) -> None:
    assert Watch("loss_spike").over(views(noisy(power_law(3000), noise, seed=seed))).told() == {}


def test_a_staircase_down_at_the_end_of_every_epoch_is_not_told() -> None:
    epochs = np.repeat([4.0, 2.5, 1.8, 1.5, 1.3, 1.2], 300)

    assert Watch("loss_spike").over(views(noisy(epochs, 0.05))).is_silent


# Where it is high


def at_ranks(*high: int) -> Callable[[int, int], float]:
    return lambda rank, step: 5.0 if rank in high else 2.0 + 0.02 * math.sin(7.0 * step + rank)


def test_names_the_ranks_whose_loss_alone_is_high() -> None:
    assert scenario(ranks=4).plays(40, loss=at_ranks()).plays(5, loss=at_ranks(2)).only("loss_spike").last.ranks == (2,)
    both = scenario(ranks=2).plays(40, loss=at_ranks()).plays(5, loss=at_ranks(0, 1))
    assert both.only("loss_spike").last.ranks == (), "all of them: it is the weights"


def test_a_restarted_daemon_keeps_the_rank(tmp_path: Path) -> None:
    with closing(JournaledCore(tmp_path / "journal.db", Config(rules=watching("loss_spike", {})))) as core:
        story = scenario(ranks=2, core=core).plays(40, loss=at_ranks()).plays(5, loss=at_ranks(1))
        with closing(core.restarted(story.now)) as again:
            story.core = again
            assert story.plays(2, loss=at_ranks(1)).only("loss_spike").last.ranks == (1,)


def test_spikes_at_one_rank_after_the_other_are_those_of_the_model() -> None:
    story = scenario(ranks=2).plays(40, loss=at_ranks())
    for rank in (0, 1):
        story.plays(5, loss=at_ranks(rank)).plays(60, loss=at_ranks())
    assert [episode.worst.ranks for episode in story.of("loss_spike")] == [(0,), ()]
