"""lr_schedule: rates that no schedule makes, and all the schedules that look like trouble."""

import functools
import math
from collections.abc import Callable
from typing import Any

import pytest

from caboose_wire import Layer
from support.ranks import EVERYTHING, a_hello
from support.scenario import Scenario
from support.scenario import scenario as of_all_rules
from support.summaries import lacks

scenario = functools.partial(of_all_rules, about="lr_schedule")

PEAK = 1e-3
Schedule = Callable[[int], float]


def following(schedule: Schedule, steps: int, **settings: Any) -> Scenario:
    """A run whose rate follows this schedule; steps count from 1."""
    return plays(scenario(1, **settings), schedule, steps)


def plays(story: Scenario, schedule: Schedule, steps: int, **changes: Any) -> Scenario:
    return story.plays(steps, lr=lambda rank, step: (schedule(step),), **changes)


def constant(step: int) -> float:
    return PEAK


def warm_up(step: int) -> float:
    return PEAK * min(1.0, step / 100)


def cosine(step: int, total: int = 1000, warmup: int = 50) -> float:
    if step <= warmup:
        return PEAK * step / warmup
    return PEAK * 0.5 * (1 + math.cos(math.pi * min(1.0, (step - warmup) / (total - warmup))))


def with_restarts(step: int, period: int = 200, lowest: float = 0.0) -> float:
    return lowest + (PEAK - lowest) * 0.5 * (1 + math.cos(math.pi * (step % period) / period))


def one_cycle(step: int, total: int = 1000) -> float:
    up = int(0.3 * total)
    start, end = PEAK / 25, PEAK / 1e5
    if step < up:
        return PEAK + (start - PEAK) * 0.5 * (1 + math.cos(math.pi * step / up))
    return end + (PEAK - end) * 0.5 * (1 + math.cos(math.pi * (step - up) / (total - up)))


def cyclic(step: int) -> float:
    return PEAK * (0.01 + abs((step % 100) / 50 - 1))


def staircase(step: int) -> float:
    return float(PEAK * 0.1 ** (step // 300))


def triangular_from_zero(step: int) -> float:
    return PEAK * (1 - abs((step % 100) / 50 - 1))


def inverse_square_root(step: int) -> float:
    return PEAK * min(step / 100, (100 / step) ** 0.5)


def linear_then_nothing(step: int) -> float:
    return PEAK * max(0.0, 1 - step / 300)


def with_jump(schedule: Schedule, at: int, factor: float, steps: int = 10**9) -> Schedule:
    return lambda step: schedule(step) * (factor if at <= step < at + steps else 1.0)


# Jumps


def test_is_silent_up_to_a_factor_of_two_and_speaks_beyond() -> None:
    assert following(with_jump(constant, 50, 2.0), 80).is_silent

    episode = following(with_jump(constant, 50, 2.1), 80).only("lr_schedule")
    assert (episode.first.step, episode.severity) == (50, "warning")
    assert episode.first.values["jump"] == 1
    assert lacks(episode.first.summary, "2.1x", "0.001 to 0.0021", "at step 50") == []


@pytest.mark.parametrize("schedule", [cosine, inverse_square_root, one_cycle, with_restarts])
def test_a_jump_above_the_peak_is_found_in_any_schedule(schedule: Schedule) -> None:
    assert following(with_jump(schedule, 450, 10.0), 500).only("lr_schedule").first.step == 450


def test_a_jump_is_over_when_the_rate_is_back_or_has_long_stood() -> None:
    story = following(with_jump(constant, 50, 10.0, steps=5), 80)
    assert story.only("lr_schedule").last.state == "resolved"

    story = following(with_jump(constant, 50, 10.0), 148)
    assert story.only("lr_schedule").is_open
    assert not plays(story, with_jump(constant, 50, 10.0), 10).only("lr_schedule").is_open


def test_is_over_after_a_jump_and_silent_for_the_rest() -> None:
    assert following(with_jump(constant, 50, 10.0, steps=3), 2000).only("lr_schedule").num_findings == 4


@pytest.mark.parametrize("kind", ["lr_restart", "restart", "batch_ramp", "data_switch"])
def test_a_declared_change_is_left_alone(kind: str) -> None:
    story = plays(following(constant, 60).declares(kind), lambda step: 5 * PEAK, 100)

    assert story.is_silent


# Schedules that look like trouble


@pytest.mark.parametrize(
    "schedule",
    [
        constant,
        warm_up,
        cosine,
        with_restarts,
        lambda step: with_restarts(step, lowest=1e-5),
        lambda step: with_restarts(step, period=10),
        one_cycle,
        cyclic,
        triangular_from_zero,
        staircase,
        inverse_square_root,
        lambda step: PEAK * 0.99**step,
        lambda step: 0.0 if step < 10 else warm_up(step),
        lambda step: PEAK * 0.5 * (1 + math.cos(math.pi * step / 150)),
    ],
    ids=range(14),
)
def test_common_schedules_are_silent(schedule: Schedule) -> None:
    assert following(schedule, 1000, about="lr_schedule").is_silent


def test_a_warm_up_in_stairs_of_epochs_is_silent() -> None:
    def stairs(step: int) -> float:
        return PEAK * min(1.0, 0.01 + 0.33 * (step // 100))

    def count(rank: int, step: int) -> int:
        return step // 100

    facts = {"scheduler": "LinearLR"}
    story = plays(scenario(1, facts=facts), stairs, 600, num_scheduler_steps=count)
    assert story.is_silent


def test_a_warm_up_in_a_few_stairs_is_silent_without_a_scheduler_too() -> None:
    assert following(lambda step: PEAK * min(1.0, 0.01 + 0.33 * (step // 10)), 200).is_silent


def test_a_log_that_skips_steps_shows_no_single_jump() -> None:
    story = scenario(1)
    for _ in range(200):
        story.step += 36
        plays(story, triangular_from_zero, 1)

    assert story.of("lr_schedule") == []


# Resets


def resumed(before: Schedule, after: Schedule, at: int = 500, counted_from: int | None = None) -> Scenario:
    """A run that was launched again and goes on where it was; its scheduler may count, after the resume from a step."""
    counts = {} if counted_from is None else {"num_scheduler_steps": lambda rank, step: step}
    story = plays(scenario(1), before, at, **counts)
    story.leaves(0).wait(10.0)
    story.talking = {0}
    hello = a_hello(rank=0, world=1, attempt=1, start_step=at, incarnation="incarnation-b")
    story.says(0, hello)
    story.step = at
    if counted_from is not None:
        counts = {"num_scheduler_steps": lambda rank, step: step - counted_from}
    return plays(story, after, 60, attempt=1, **counts)


def test_a_resume_with_the_same_schedule_is_silent() -> None:
    assert resumed(cosine, cosine).is_silent


def test_a_rate_that_is_back_at_its_start_after_a_resume_is_found() -> None:
    decayed, fresh = (lambda step: PEAK * 0.99**step), (lambda step: PEAK * 0.99 ** (step - 500))

    first = resumed(decayed, fresh).only("lr_schedule").first
    assert first.step == 501
    assert first.values["reset"] == 1
    assert lacks(first.summary, "learning rate 0.00099", "step 501", "6.57e-06 before") == []


def test_a_warm_up_that_begins_again_after_a_resume_is_found() -> None:
    assert resumed(cosine, lambda step: cosine(step - 500)).only("lr_schedule").first.step == 501


def test_a_scheduler_that_starts_over_is_found_though_its_warm_up_is_a_usual_rate() -> None:
    at_a_tenth = lambda step: PEAK / 10  # noqa: E731 - as low before as the warm-up is after

    first = resumed(at_a_tenth, lambda step: warm_up(step - 490), counted_from=500).only("lr_schedule").first

    assert (first.step, first.values["reset"]) == (501, 1)
    assert lacks(first.summary, "counts 1", "500 before") == []
    assert resumed(at_a_tenth, at_a_tenth, counted_from=0).is_silent


def test_a_rate_lowered_on_purpose_after_a_resume_is_left_alone() -> None:
    assert resumed(cosine, lambda step: 0.3 * cosine(step)).is_silent


def test_a_scheduler_that_counts_from_the_start_again_is_found() -> None:
    def count(rank: int, step: int) -> int:
        return step if step < 400 else step - 400

    story = plays(scenario(1), lambda step: with_restarts(step % 400, period=1000), 500, num_scheduler_steps=count)
    assert story.only("lr_schedule").first.values["reset"] == 1


# Zero


def test_a_rate_of_zero_before_the_known_end_is_found() -> None:
    config = {"total_steps": 1000}
    assert following(linear_then_nothing, 303, config=config).is_silent

    episode = following(linear_then_nothing, 310, config=config).only("lr_schedule")
    assert episode.first.onset_step == 300
    assert episode.first.values["zero"] == 1
    assert lacks(episode.first.summary, "learning rate 0 since step 300") == []


def test_a_rate_of_zero_at_the_end_is_the_end() -> None:
    assert following(linear_then_nothing, 310, config={"total_steps": 305}).is_silent
    assert following(linear_then_nothing, 320).is_silent


def test_a_hundred_steps_of_zero_are_told_also_where_the_end_is_not_known() -> None:
    assert following(linear_then_nothing, 420).only("lr_schedule").first.onset_step == 300


def test_a_rate_that_decayed_to_next_to_nothing_is_as_good_as_zero() -> None:
    """Divided by ten at every fortieth batch instead of every fortieth epoch."""

    def decay(step: int) -> float:
        return 1e-3 * 0.1 ** (step // 40)

    assert following(decay, 340).is_silent, "a hundred steps of it, where the end is not known"
    episode = following(decay, 400).only("lr_schedule")
    assert episode.first.onset_step in (240, 280)
    assert episode.first.values["zero"] == 1
    assert episode.is_open


@pytest.mark.parametrize(("update", "is_silent"), [(1e-8, False), (1e-6, True)])
def test_a_low_rate_whose_updates_are_rounded_away_is_as_good_as_zero(update: float, is_silent: bool) -> None:
    table = tuple(Layer(f"layer{number}.weight", 4096, "Linear") for number in range(2))
    story = scenario(1, layers=table, norms=(1.0, 1.0), visible=EVERYTHING, config={"total_steps": 1000})
    plays(story, constant, 100).meanwhile(lr=(1e-3 * PEAK,)).sampled(2, update_ratio=[update, update])

    assert story.healthy(30).is_silent is is_silent


def test_a_rate_of_a_hundred_thousandth_of_its_peak_is_not_zero() -> None:
    assert following(lambda step: 1e-3 if step < 100 else 1e-8, 400).is_silent


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.long
def test_a_rate_that_was_rounded_to_zero_near_the_end_of_a_long_run_is_silent() -> None:
    assert following(lambda step: round(cosine(step, total=5000), 5), 5000).is_silent


def test_is_over_when_the_rate_is_no_longer_zero() -> None:
    story = plays(following(linear_then_nothing, 420), lambda step: 1e-5, 3)

    assert not story.only("lr_schedule").is_open


# A scheduler without effect


def counted(kind: str, *, per_step: bool, steps: int, rate: Schedule = constant, **told: Any) -> Scenario:
    facts = {"scheduler": kind, "num_batches": 100}
    count = (lambda rank, step: step) if per_step else (lambda rank, step: 0)
    return plays(scenario(1, facts=facts), rate, steps, num_scheduler_steps=count, **told)


def test_a_scheduler_that_is_never_stepped_is_found_after_two_epochs() -> None:
    assert counted("LambdaLR", per_step=False, steps=195).is_silent

    episode = counted("LambdaLR", per_step=False, steps=210).only("lr_schedule")
    assert episode.first.values["unmoved"] == 1
    assert lacks(episode.first.summary, "constant at 0.001", "never stepped") == []


def test_a_scheduler_of_another_optimizer_is_found() -> None:
    episode = counted("CosineAnnealingLR", per_step=True, steps=40).only("lr_schedule")

    assert episode.first.values["unmoved"] == 1
    assert lacks(episode.first.summary, "no effect") == []


@pytest.mark.parametrize("kind", ["LambdaLR", "StepLR", "MultiStepLR", "ConstantLR", "ReduceLROnPlateau"])
def test_kinds_that_may_stand_still_while_they_count_are_left_alone(kind: str) -> None:
    assert counted(kind, per_step=True, steps=1000).is_silent


@pytest.mark.parametrize("kind", ["ConstantLR", "ReduceLROnPlateau"])
def test_kinds_of_which_nothing_is_expected_need_not_be_stepped(kind: str) -> None:
    assert counted(kind, per_step=False, steps=1000).is_silent


def test_it_is_over_when_the_rate_moves() -> None:
    late = with_jump(constant, 300, 0.5)

    assert not counted("CosineAnnealingLR", per_step=True, steps=310, rate=late).only("lr_schedule").is_open


def test_without_a_scheduler_a_constant_rate_is_fine() -> None:
    assert following(constant, 3000).is_silent


# Blindness


def test_abstains_where_no_rate_is_seen() -> None:
    assert scenario(1).plays(100, lr=()).is_silent
    assert following(with_jump(constant, 50, 50.0), 100, visible=("loss",)).is_silent


def test_groups_that_are_frozen_and_unfrozen_are_not_the_schedule() -> None:
    def groups(rank: int, step: int) -> tuple[float, ...]:
        return (1e-3, 0.0 if step < 100 else 1e-4, 1e-4 if step < 50 else 0.0)

    assert scenario(1).plays(200, lr=groups).is_silent
