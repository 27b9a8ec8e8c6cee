"""data_starved: the share of time spent waiting for data, and the waits that are no starving."""

import functools
from typing import Any

import numpy as np
import pytest

from caboose_daemon.rules.data_starved import DataStarvedConfig
from caboose_wire import Batch, Phases
from support.scenario import Scenario
from support.scenario import scenario as of_all_rules
from support.seeds import seeds
from support.summaries import lacks

scenario = functools.partial(of_all_rules, about="data_starved")

NAN = float("nan")


def waiting(wait: float, step: float = 0.1) -> Phases:
    """A step that would take so long, and has waited for its data before."""
    return Phases(step + wait, wait, 0.3 * step, 0.6 * step, 0.1 * step)


def a_job(steps: int, wait: float, ranks: int = 2, **settings: Any) -> Scenario:
    return scenario(ranks, **settings).plays(steps, phases=waiting(wait))


# The threshold


def test_is_silent_below_a_tenth_of_the_step_and_speaks_above_it() -> None:
    assert a_job(300, 0.0108).is_silent

    episode = a_job(300, 0.012).only("data_starved")
    assert (episode.severity, episode.first.phase) == ("warning", "input")
    assert lacks(episode.first.summary, "11 % of a step of 112 ms", "limit 10 %", "since step 21") == []


def test_a_wait_of_a_few_milliseconds_is_the_loops_own() -> None:
    def tiny(wait: float) -> Scenario:
        return scenario(1).plays(300, phases=waiting(wait, step=0.002))

    assert tiny(0.0009).is_silent
    assert tiny(0.0015).is_silent  # it has cost half a second so far, and steps do something else as well
    assert tiny(0.004).only("data_starved"), "they hardly do"
    assert tiny(0.012).only("data_starved").first.values["wait_seconds"] == pytest.approx(0.012)


def test_a_short_wait_is_reported_once_it_has_cost_a_minute() -> None:
    def job(steps: int) -> Scenario:
        return scenario(1).plays(steps, phases=waiting(0.008, step=0.02))

    assert job(7000).is_silent
    assert job(7600).only("data_starved").first.step > 7400


def test_above_a_fifth_it_is_called_severe_and_stays_a_warning() -> None:
    episode = a_job(300, 0.1).only("data_starved")

    assert lacks(episode.last.summary, "severe", "50 % of a step of 200 ms") == []
    assert episode.severity == "warning"


def test_nothing_is_said_before_twenty_steps() -> None:
    assert a_job(20, 0.5).is_silent  # the very first step may begin an epoch, and compiles
    assert not a_job(25, 0.5).is_silent


def test_thresholds_can_be_configured() -> None:
    rules = {"data_starved": DataStarvedConfig(warn_share=0.6)}

    assert a_job(300, 0.1, rules=rules).is_silent
    assert not a_job(300, 0.2, rules=rules).is_silent


def test_bursts_of_a_loader_with_workers_count_by_their_time() -> None:
    def phases(rank: int, step: int) -> Phases:
        return waiting(0.4 if step % 8 == 0 else 0.0)

    last = scenario(2).plays(300, phases=phases).only("data_starved").last
    assert last.values["share"] == pytest.approx(1 / 3, abs=0.05)


# Recovery


def test_is_over_when_the_wait_is_down() -> None:
    story = a_job(100, 0.1).plays(300, phases=waiting(0.002))

    episode = story.only("data_starved")
    assert (episode.is_open, episode.last.state) == (False, "resolved")
    assert story.plays(300, phases=waiting(0.002)).only("data_starved").num_findings == episode.num_findings


# Look-alikes


def test_the_first_batch_of_an_epoch_is_left_out() -> None:
    def phases(rank: int, step: int) -> Phases:
        return waiting(2.0 if step % 10 == 0 else 0.0)

    def batch(rank: int, step: int) -> Batch:
        return Batch(index=step, epoch=step // 10)

    assert scenario(2).plays(500, phases=phases, batch=batch).is_silent
    assert not scenario(2).plays(500, phases=phases, batch=Batch(index=7)).is_silent


def test_one_long_wait_is_nothing() -> None:
    def phases(rank: int, step: int) -> Phases:
        return waiting(60.0 if step == 100 else 0.001)

    assert scenario(2).plays(300, phases=phases).of("data_starved") == []


def test_an_evaluation_before_the_step_is_left_out() -> None:
    story = scenario(2).plays(50, phases=waiting(0.001))
    for _ in range(100):
        story.declares("validation").plays(1, phases=waiting(5.0))

    assert story.of("data_starved") == []


def test_one_rank_that_waits_is_not_the_job() -> None:
    def phases(rank: int, step: int) -> Phases:
        return waiting(0.1) if rank == 3 else waiting(0.0)

    assert scenario(4).plays(300, phases=phases).of("data_starved") == []


@pytest.mark.parametrize("seed", seeds(3))
def test_a_long_noisy_healthy_run_is_silent(seed: int) -> None:
    waits = 0.003 * np.random.default_rng(seed).standard_gamma(0.5, 3000)

    def phases(rank: int, step: int) -> Phases:
        return waiting(float(waits[step - 1]))

    assert scenario(1, about="data_starved", noise=0.05, seed=seed).plays(3000, phases=phases).is_silent


# Blindness


def test_abstains_where_the_wait_is_not_known() -> None:
    assert scenario(2).plays(200, phases=Phases(0.1, NAN, 0.03, 0.05, 0.01)).is_silent
    assert scenario(2).plays(200, phases=None).is_silent
    assert a_job(200, 0.5, visible=("loss",)).is_silent
