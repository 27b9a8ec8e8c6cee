"""The snapshot is one that every rank can go back to, and the boundary one that every rank can know of."""

import pytest

from caboose_daemon.rollback.target import (
    MAX_NOTICE,
    ahead,
    choose,
    common,
    expected_steps_lost,
    held_on,
    notice,
    pace,
    stride,
)
from caboose_daemon.steps.columns import StepSummary
from caboose_wire import Held, Holdings
from caboose_wire.expectation import MIN_NOTICE
from caboose_wire.fields import MAX_COUNT

GROUP = "group-of-these-ranks"


def holdings(*steps: int, waiting: tuple[int, ...] = ()) -> Holdings:
    held = [Held(step, step, float(step), is_ready=step not in waiting) for step in (*steps, *waiting)]
    return Holdings(group=GROUP, snapshots=tuple(held))


def test_the_newest_that_is_ready_on_every_rank_is_taken() -> None:
    ranks = {0: holdings(100, 150, 200), 1: holdings(100, 150, waiting=(200,)), 2: holdings(50, 100, 150, 200)}

    target, line = choose(ranks, 3, latest=400)

    assert target is not None
    assert target.step == 150, "200 is still in quarantine on rank 1"
    assert line == "snapshot of step 150: the newest ready on all 3 ranks by step 400"


@pytest.mark.parametrize(("latest", "step"), [(150, 150), (149, 100)])
def test_it_is_not_younger_than_asked_for(latest: int, step: int) -> None:
    target, _ = choose({0: holdings(100, 150), 1: holdings(100, 150)}, 2, latest=latest)

    assert target is not None
    assert target.step == step


def test_none_is_taken_while_a_rank_has_not_told_what_it_holds() -> None:
    assert common({0: holdings(100)}, 2) == {}
    assert choose({0: holdings(100)}, 3, latest=400) == (None, "ranks 1, 2 of 3 reported no snapshots")


def test_ragged_holdings_without_a_common_one_are_shown() -> None:
    target, line = choose({0: holdings(100), 1: holdings(150, waiting=(200,))}, 2, latest=400)

    assert target is None
    assert line == (
        "no snapshot at or before step 400 is ready on all 2 ranks; held on rank 0: 100; rank 1: 150, 200 (not ready)"
    )


def test_what_all_ranks_hold_alike_is_told_once() -> None:
    assert held_on(dict.fromkeys(range(8), holdings(100, 150))) == "held: 100, 150"


def test_a_tainted_one_is_passed_over() -> None:
    taint = {150: "taken after step 140, where incident 1 began"}
    ranks = {0: holdings(100, 150)}

    target, _ = choose(ranks, 1, latest=400, taint_of=lambda step: taint.get(step, ""))
    assert target is not None
    assert target.step == 100

    nothing, line = choose({0: holdings(150)}, 1, latest=400, taint_of=lambda step: taint.get(step, ""))
    assert nothing is None
    assert line.endswith("; step 150: taken after step 140, where incident 1 began")


def test_after_one_that_did_not_help_an_older_one_is_taken() -> None:
    target, line = choose({0: holdings(50, 100, 150, 200)}, 1, latest=400, older_than=150, used={150})

    assert target is not None
    assert target.step == 100
    assert line == "snapshot of step 100: the newest ready on all 1 ranks before step 150"


def test_where_no_older_one_is_held_it_is_the_oldest_that_was_not_tried() -> None:
    target, line = choose({0: holdings(150, 200, 250)}, 1, latest=400, older_than=150, used={150})

    assert target is not None
    assert target.step == 200
    assert line == "snapshot of step 200: the oldest untried one on all 1 ranks"
    nothing = choose({0: holdings(150)}, 1, latest=400, older_than=150, used={150})
    assert nothing == (None, "all snapshots at or before step 400 were tried; held: 150")


# How far ahead


def test_slow_steps_have_a_few_of_notice_and_fast_ones_half_a_second() -> None:
    assert notice(10.0, 0.0) == MIN_NOTICE
    assert notice(0.1, 0.0) == 7
    assert notice(0.1, 0.5) == 17, "twice the lag comes on top"


def test_what_a_rollback_loses_is_half_a_cadence_the_margin_and_the_notice() -> None:
    held = {rank: Holdings(group="g" * 16, snapshot_every=every) for rank, every in enumerate((10, 20))}

    assert expected_steps_lost(held, 1.0, 0.0, 5) == 10 + 5 + MIN_NOTICE
    assert expected_steps_lost(held, 0.1, 0.0, 5) == 10 + 5 + 7
    assert expected_steps_lost(held, 1.0, 0.0, 100) == 10 + 20 + MIN_NOTICE, "one cadence further back, not five"
    assert expected_steps_lost({}, 1.0, 0.0, 5) is None


def test_a_clock_that_is_wrong_does_not_put_the_boundary_into_the_next_day() -> None:
    assert notice(0.1, 86_400.0) == 207
    assert notice(0.1, -5.0) == 7


def test_each_time_it_was_too_short_doubles_it() -> None:
    assert [notice(0.1, 0.0, num_tried=n) for n in range(3)] == [7, 14, 28]


def test_it_is_never_further_than_the_ranks_accept() -> None:
    assert notice(0.0001, 0.0, num_tried=3) == MAX_NOTICE
    assert notice(0.1, 0.0, num_tried=9) == 1000


@pytest.mark.parametrize("step_seconds", [0.0003, 0.001, 0.01])
def test_fast_steps_have_as_many_seconds_as_slow_ones(step_seconds: float) -> None:
    assert notice(step_seconds, 0.0) * step_seconds >= 0.5


def test_a_run_that_counts_in_strides_acts_at_a_step_that_it_comes_to() -> None:
    sevens = [a_step(step, 0.1 * step) for step in (7, 14, 21, 35)]

    assert stride(sevens) == 7
    assert ahead(35, 17, 7) == 35 + 21
    assert ahead(35, MAX_NOTICE, 7) == 35 + 19_999, "no further than the ranks accept"
    assert ahead(4096, 4, 2048) == 6144, "or the very next one"


def test_a_boundary_is_a_step_that_the_wire_can_carry() -> None:
    assert ahead(MAX_COUNT - 1, 4, 1) == ahead(MAX_COUNT, 4, 1) == MAX_COUNT


def test_where_no_stride_is_known_every_step_will_do() -> None:
    assert stride([]) == stride([a_step(9, 0.0)]) == 1
    assert ahead(100, 17, 1) == 117


def a_step(step: int, time: float, seconds: float | None = None) -> StepSummary:
    return StepSummary(1, step, time, 2.0, None, None, None, None, seconds, None, None, 1)


def test_the_pace_is_the_time_from_step_to_step() -> None:
    assert pace([a_step(i, 0.2 * i, 0.1) for i in range(100)]) == pytest.approx(0.2)
    assert pace([a_step(10, 1.0), a_step(20, 3.0)]) == pytest.approx(0.2), "where only some steps are reported"
    assert pace([a_step(1, 0.0, 0.3)]) == 0.3
    assert pace([]) == 1.0
