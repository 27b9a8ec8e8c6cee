"""straggler: the rank that others wait for, told from those that wait, from noise, and from what is no straggling."""

import functools
import math
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from caboose_daemon.rules.straggler import StragglerConfig
from caboose_wire import Layer, Phases
from support.scenario import Scenario
from support.scenario import scenario as of_all_rules
from support.seeds import first_of
from support.summaries import lacks

scenario = functools.partial(of_all_rules, about="straggler")

Extra = Callable[[int, int], float]
SHARDED = tuple(Layer(name=f"blocks.{i}.weight", numel=100, placement="sharded") for i in range(4))


def nothing(rank: int, step: int) -> float:
    return 0.0


def only(slow: int, seconds: float, *, first: int = 0, every: int = 1) -> Extra:
    """One rank takes longer, from some step on, on every so many steps."""
    return lambda rank, step: seconds if rank == slow and step >= first and step % every == 0 else 0.0


def synchronous(
    ranks: int,
    *,
    data: Extra = nothing,
    forward: Extra = nothing,
    other: Extra = nothing,
    backward: Extra = nothing,
    jitter: float = 0.0,
    seed: int = 0,
    is_wait_known: bool = False,
) -> dict[str, Any]:
    """Phases of a DDP job whose usual step takes 1 s: everybody waits, in the backward, for the last to arrive."""
    generator = np.random.default_rng(seed)
    steps: dict[int, list[Phases]] = {}

    def play(step: int) -> list[Phases]:
        noise = (jitter * generator.standard_normal(ranks)).tolist()
        parts = [
            (0.02 + data(r, step), max(0.05, 0.3 + forward(r, step) + noise[r]), 0.05 + other(r, step), 0.5)
            for r in range(ranks)
        ]
        end = max(sum(p) + backward(r, step) for r, p in enumerate(parts)) + 0.1
        waits = [end - sum(p) - backward(r, step) for r, p in enumerate(parts)]
        known = [(0.0, wait) if is_wait_known else (math.nan, math.nan) for wait in waits]
        return [
            Phases(end, p[0], p[1], end - sum(p[:3]) - 0.03, 0.03, math.nan, *known[r]) for r, p in enumerate(parts)
        ]

    def phases(rank: int, step: int) -> Phases:
        if step not in steps:
            steps.clear()
            steps[step] = play(step)
        return steps[step][rank]

    return {"phases": phases}


def a_job(ranks: int = 4, steps: int = 150, *, settings: dict[str, Any] | None = None, **phases: Any) -> Scenario:
    return scenario(ranks, step_seconds=1.0, **(settings or {})).plays(steps, **synchronous(ranks, **phases))


# The threshold


@pytest.mark.parametrize("ranks", [2, 4, 16])
def test_is_silent_below_a_tenth_of_the_step_and_speaks_above_it(ranks: int) -> None:
    assert a_job(ranks, forward=only(1, 0.09)).is_silent

    episode = a_job(ranks, forward=only(1, 0.2)).only("straggler")
    assert (episode.first.ranks, episode.first.phase, episode.severity) == ((1,), "forward", "warning")
    assert episode.is_open


def test_it_takes_some_tens_of_steps() -> None:
    quick = a_job(4, 90, forward=only(2, 0.5, first=60))
    assert quick.is_silent

    assert a_job(4, 110, forward=only(2, 0.5, first=60)).only("straggler").first.step > 90


def test_the_summary_names_rank_host_phase_and_what_it_costs() -> None:
    summary = a_job(8, forward=only(5, 0.5)).only("straggler").last.summary

    assert lacks(summary, "rank 5 (node5): 4", " ms of each step of ", " %)", "in the forward", "since step") == []


def test_a_lag_is_no_straggler_before_it_has_cost_a_second() -> None:
    """A busy machine holds up one process for many steps of a few milliseconds."""

    def quick(num: int) -> Scenario:
        slow = synchronous(2, forward=only(1, 0.5, first=100))

        def phases(rank: int, step: int) -> Phases:
            return Phases(*(part / 250 for part in msgspec.structs.astuple(slow["phases"](rank, step))))

        return scenario(2, step_seconds=0.005).plays(num, phases=phases)

    assert quick(300).is_silent, "0.4 s"
    episode = quick(900).only("straggler")
    assert (episode.first.ranks, episode.first.onset_step < 160, episode.first.step > 500) == ((1,), True, True)


def test_the_share_can_be_configured() -> None:
    rules = {"straggler": StragglerConfig(lag_share=0.03)}

    assert a_job(4, settings={"rules": rules}, forward=only(1, 0.09)).only("straggler").first.ranks == (1,)


# Who is named, and for what


def test_a_rank_that_waits_for_its_data_is_named_with_that_cause() -> None:
    first = a_job(8, data=only(3, 0.3)).only("straggler").first

    assert (first.ranks, first.phase) == ((3,), "data")


def test_code_between_the_steps_of_one_rank_is_named_as_such() -> None:
    first = a_job(8, other=only(0, 0.3)).only("straggler").first

    assert (first.ranks, first.phase) == ((0,), "other")


def test_a_rank_that_is_slow_in_all_it_computes_is_named_and_not_those_that_wait() -> None:
    story = a_job(8, forward=only(6, 0.3), backward=only(6, 0.5))

    assert story.only("straggler").last.ranks == (6,)


def test_a_whole_host_of_slow_ranks_is_named_the_slowest_first() -> None:
    def slow(rank: int, step: int) -> float:
        return {4: 0.3, 5: 0.4, 6: 0.3}.get(rank, 0.0)

    last = a_job(16, forward=slow).only("straggler").last
    assert last.ranks[0] == 5
    assert set(last.ranks) == {4, 5, 6}
    assert lacks(last.summary, "rank 5 (node5) and 2 more ranks") == []


# Recovery


def test_is_over_when_nobody_is_waited_for_any_more() -> None:
    story = scenario(4, step_seconds=1.0).plays(100, **synchronous(4, forward=only(1, 0.4)))
    assert story.only("straggler").is_open

    episode = story.plays(60, **synchronous(4)).only("straggler")
    assert (episode.is_open, episode.last.state) == (False, "resolved")


# Look-alikes


def test_one_slow_step_is_nothing() -> None:
    def once(rank: int, step: int) -> float:
        return 60.0 if (rank, step) == (1, 80) else 0.0

    assert a_job(4, other=once).is_silent


def test_a_checkpoint_that_rank_0_writes_now_and_then_is_nothing() -> None:
    assert a_job(4, 300, other=only(0, 5.0, every=10)).is_silent


def test_work_that_one_rank_does_on_every_second_step_is_nothing_persistent() -> None:
    assert a_job(4, 300, other=only(0, 1.0, every=2)).is_silent


def test_an_evaluation_on_one_rank_is_nothing() -> None:
    story = scenario(4, step_seconds=1.0).plays(40, **synchronous(4))
    for _ in range(100):
        story.declares("validation").plays(1, **synchronous(4, other=only(0, 5.0)))

    assert story.is_silent


def test_a_first_step_that_compiles_longer_on_one_rank_is_nothing() -> None:
    def compiling(rank: int, step: int) -> float:
        return 300.0 if rank == 2 and step <= 3 else 0.0

    assert a_job(4, forward=compiling).is_silent


@pytest.mark.parametrize("ranks", first_of([2, 3, 8, 64]))
@pytest.mark.parametrize("jitter", [0.02, 0.15])
def test_the_scatter_of_a_long_healthy_run_names_nobody(ranks: int, jitter: float) -> None:
    steps = 600 if ranks < 64 else 100

    assert a_job(ranks, steps, settings={"about": "straggler"}, jitter=jitter, seed=ranks).is_silent


def test_a_cluster_of_two_kinds_of_machines_has_no_straggler() -> None:
    def older(rank: int, step: int) -> float:
        return 0.3 if rank % 2 else 0.0

    assert a_job(8, forward=older).is_silent


def test_a_cluster_whose_machines_differ_gradually_has_no_straggler() -> None:
    assert a_job(16, forward=lambda rank, step: 0.03 * rank).is_silent


def test_a_rank_that_nobody_waits_for_is_no_straggler() -> None:
    """Its step takes longer, and the others' does not: this job is not synchronous, or its clock is odd."""

    def phases(rank: int, step: int) -> Phases:
        late = 0.5 if rank == 1 else 0.0
        return Phases(1.0 + late, 0.02, 0.3 + late, 0.6, 0.03)

    assert scenario(4, step_seconds=1.0).plays(200, phases=phases).of("straggler") == []


# Sharded models


def test_under_sharding_a_slow_forward_cannot_be_told_and_is_not() -> None:
    assert a_job(4, settings={"layers": SHARDED}, forward=only(1, 0.5)).is_silent


def test_under_sharding_the_wait_for_data_is_still_a_ranks_own() -> None:
    first = a_job(4, settings={"layers": SHARDED}, data=only(1, 0.5)).only("straggler").first

    assert (first.ranks, first.phase, first.severity) == ((1,), "data", "warning")


# Blindness


def test_abstains_without_phases() -> None:
    assert scenario(4).plays(200, phases=None).is_silent
    assert a_job(4, settings={"visible": ("loss",)}, forward=only(1, 0.5)).is_silent


def test_says_nothing_of_steps_that_a_rank_did_not_report() -> None:
    story = scenario(4, step_seconds=1.0).falls_silent(3).plays(200, **synchronous(4, forward=only(1, 0.5)))

    assert story.of("straggler") == []


@pytest.mark.parametrize("layers", [(), SHARDED], ids=["replicated", "sharded"])
@pytest.mark.parametrize("ranks", [2, 16])
@pytest.mark.parametrize("place", ["backward", "forward", "other"])
def test_a_rank_whose_own_time_is_longest_is_named_wherever_it_is_slow(
    place: str, ranks: int, layers: tuple[Layer, ...]
) -> None:
    settings = {"layers": layers} if layers else {}
    story = a_job(ranks, 100, settings=settings, jitter=0.01, is_wait_known=True, **{place: only(1, 0.4)})

    finding = story.only("straggler").first
    assert (finding.ranks, finding.phase) == ((1,), place)


def test_a_slow_backward_of_an_older_agent_is_nobodys() -> None:
    assert a_job(4, backward=only(1, 0.4)).is_silent
