"""throughput_regression: slower than the job itself was, for long, and what only takes longer now and then."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from caboose_daemon.rules.throughput_regression import ThroughputRegressionConfig
from caboose_wire import Phases
from support.scenario import Scenario
from support.scenario import scenario as of_all_rules
from support.seeds import first_of, seeds
from support.summaries import lacks

scenario = functools.partial(of_all_rules, about="throughput_regression")


def taking(seconds: float, data: float = 0.0) -> Phases:
    return Phases(seconds + data, 0.001 + data, 0.3 * seconds, 0.5 * seconds, 0.1 * seconds)


def a_job(seconds: Callable[[int], float], steps: int = 600, **settings: Any) -> Scenario:
    return scenario(1, **settings).plays(steps, phases=lambda rank, step: taking(seconds(step)))


def slower(factor: float, first: int = 300, last: int = 10**9) -> Callable[[int], float]:
    return lambda step: 0.5 * (factor if first <= step < last else 1.0)


# The threshold


def test_is_silent_up_to_a_fifth_and_speaks_beyond() -> None:
    assert a_job(slower(1.2)).is_silent

    episode = a_job(slower(1.35)).only("throughput_regression")
    assert episode.severity == "warning"
    assert episode.last.values["slowdown"] == pytest.approx(0.26, abs=0.01)
    assert lacks(episode.last.summary, "1.48 steps/s against 2", "26 % slower since step") == []


def test_the_phase_that_grew_is_named() -> None:
    def phases(rank: int, step: int) -> Phases:
        return taking(0.1, data=0.1 if step > 300 else 0.0)

    last = scenario(1).plays(600, phases=phases).of("throughput_regression")[0].last
    assert last.phase == "data"
    assert "data went from 1 ms to 101 ms" in last.summary


def test_it_has_to_last() -> None:
    assert a_job(slower(2.0), 360).is_silent
    assert not a_job(slower(2.0), 400).is_silent


@pytest.mark.long
@pytest.mark.slow
def test_a_rate_that_sinks_slowly_is_found() -> None:
    assert a_job(lambda step: 0.1 * 1.0002**step, 3000).only("throughput_regression")


def test_thresholds_can_be_configured() -> None:
    rules = {"throughput_regression": ThroughputRegressionConfig(slowdown=0.1)}

    assert a_job(slower(1.2), rules=rules).only("throughput_regression")


@pytest.mark.parametrize(("unit", "field"), [("samples", "num_samples"), ("tokens", "num_tokens")])
def test_work_is_counted_where_it_is_told(unit: str, field: str) -> None:
    """Steps that take twice as long for twice the work are not slower."""

    def phases(rank: int, step: int) -> Phases:
        return taking(0.2 + 0.02 * (step % 10))

    def work(rank: int, step: int) -> int:
        return 100 + 10 * (step % 10) if step <= 300 else 50 + 5 * (step % 10)

    story = scenario(1).plays(300, phases=phases, num_tokens=work).plays(300, phases=phases, num_tokens=work)
    assert story.only("throughput_regression").last.summary.count("tokens/s") == 1
    assert scenario(1).plays(900, phases=phases, **{field: lambda r, s: 100 + 10 * (s % 10)}).is_silent


# Recovery


def test_is_over_when_the_rate_is_back() -> None:
    episode = a_job(slower(2.0, 300, 500), 900).only("throughput_regression")

    assert (episode.is_open, episode.last.state) == (False, "resolved")


# Look-alikes


def test_a_few_slow_steps_are_nothing() -> None:
    assert a_job(lambda step: 5.0 if step % 50 == 0 else 0.1, 1500).of("throughput_regression") == []
    assert a_job(lambda step: 10.0 if 300 <= step < 320 else 0.1, 900).of("throughput_regression") == []


def test_a_declared_batch_ramp_begins_a_new_baseline() -> None:
    fast, slow = taking(0.1), taking(0.3)
    story = scenario(1).plays(300, phases=fast).declares("batch_ramp").plays(600, phases=slow)

    assert story.is_silent


def test_evaluations_are_left_out() -> None:
    story = scenario(1).plays(300, phases=taking(0.1))
    for _ in range(200):
        story.declares("validation").plays(1, phases=taking(5.0)).plays(1, phases=taking(0.1))

    assert story.of("throughput_regression") == []


def test_a_slow_start_is_no_baseline_and_a_fast_first_step_neither() -> None:
    assert a_job(lambda step: 30.0 if step <= 5 else 0.1).of("throughput_regression") == []
    assert a_job(lambda step: 0.001 if step <= 5 else 0.1).of("throughput_regression") == []


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("seed", seeds(3))
@pytest.mark.parametrize("scatter", first_of([0.05, 0.4, 1.0]))
def test_a_long_run_of_batches_of_changing_length_is_silent(seed: int, scatter: float) -> None:
    times = 0.1 * np.exp(scatter * np.random.default_rng(seed).standard_normal(4000))

    assert a_job(lambda step: float(times[step - 1]), 4000, about="throughput_regression").is_silent


# Blindness


def test_abstains_without_phases() -> None:
    assert scenario(1).plays(600, phases=None).is_silent
    assert a_job(slower(3.0), visible=("loss",)).is_silent


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.long
def test_short_steps_have_to_cost_ten_seconds_too() -> None:
    def job(steps: int) -> Scenario:
        return a_job(lambda step: 0.01 * (2.0 if step >= 300 else 1.0), 300 + steps)

    assert job(900).is_silent
    assert job(1200).only("throughput_regression").first.onset_step < 400


def test_steps_that_only_ever_grow_are_reported_whatever_they_cost() -> None:
    """A list that is never cleared: each step takes a little longer than the one before."""
    assert a_job(lambda step: 0.002 * (1.0 + step / 100), 400).only("throughput_regression")


@pytest.mark.parametrize("seed", seeds(5))
def test_a_busy_machine_slows_short_steps_now_and_then(seed: int) -> None:
    draw = np.random.default_rng(seed)
    load = np.repeat(draw.uniform(1.0, 4.0, 20), 50)
    assert a_job(lambda step: 0.004 * float(load[step % 1000]), 600).of("throughput_regression") == []
