"""When a step is complete, when it waits no longer, and what is counted on the way."""

import sys

import msgspec
import numpy as np
import pytest

from caboose_daemon.steps.aligned import AlignedStep, combine
from caboose_daemon.steps.alignment import MAX_OPEN, Aligner
from caboose_wire import Clipping, Phases
from caboose_wire.fields import MAX_RANKS
from support.ranks import LAYERS, a_report


class Ranks:
    """An aligner and the ranks it waits for."""

    def __init__(self, world: int = 2) -> None:
        self.aligner = Aligner(attempt=1)
        self.world = world
        self.gone: set[int] = set()

    def report(self, rank: int, step: int, now: float = 0.0, seconds: float = 0.1) -> None:
        self.aligner.add(rank, a_report(step, loss=float(rank), phases=Phases(total=seconds)), now)

    def closed(self, now: float = 0.0) -> list[AlignedStep]:
        return list(self.aligner.close(self.gone, self.world, LAYERS, now))

    def closed_steps(self, now: float = 0.0) -> list[int]:
        return [step.step for step in self.closed(now)]


def test_a_step_closes_once_every_rank_has_reported_it() -> None:
    ranks = Ranks(3)
    ranks.report(0, 1)
    ranks.report(2, 1)
    assert ranks.closed_steps() == []

    ranks.report(1, 1)
    (step,) = ranks.closed()
    assert (step.step, step.attempt, step.num_present, step.world) == (1, 1, 3, 3)
    assert step.loss.tolist() == [0.0, 1.0, 2.0]
    assert ranks.aligner.num_incomplete == 0


def test_a_rank_that_reports_a_later_step_is_not_waited_for_in_an_earlier_one() -> None:
    ranks = Ranks()
    ranks.report(0, 1)
    ranks.report(0, 2)
    ranks.report(1, 2)

    first, second = ranks.closed()
    assert (first.step, first.num_present) == (1, 1)
    assert (second.step, second.num_present) == (2, 2)
    assert ranks.aligner.num_incomplete == 1


def test_a_rank_that_is_behind_is_waited_for() -> None:
    ranks = Ranks()
    for step in range(1, 11):
        ranks.report(0, step)
    for step in range(1, 4):
        ranks.report(1, step)

    assert ranks.closed_steps() == [1, 2, 3]


def test_steps_close_in_order_whatever_order_they_came_in() -> None:
    ranks = Ranks()
    for step in (5, 3, 4, 1, 2):
        ranks.report(0, step)
        ranks.report(1, step)

    assert ranks.closed_steps() == [1, 2, 3, 4, 5]


def test_without_its_last_rank_a_step_closes_at_the_deadline_and_not_before() -> None:
    ranks = Ranks()
    ranks.report(0, 1, now=10.0)

    assert ranks.closed_steps(now=11.9) == []
    (step,) = ranks.closed(now=12.0)
    assert step.present.tolist() == [True, False]
    assert ranks.aligner.num_incomplete == 1


@pytest.mark.parametrize(("seconds", "deadline"), [(0.01, 2.0), (0.5, 2.0), (1.0, 3.0), (20.0, 60.0)])
def test_the_deadline_follows_the_median_step_time(seconds: float, deadline: float) -> None:
    ranks = Ranks()
    for step in range(1, 10):
        ranks.report(0, step, seconds=seconds)

    assert ranks.aligner.deadline_seconds == pytest.approx(deadline)


def test_a_single_slow_step_does_not_move_the_deadline() -> None:
    ranks = Ranks()
    for step in range(1, 10):
        ranks.report(0, step, seconds=1000.0 if step == 5 else 1.0)

    assert ranks.aligner.deadline_seconds == pytest.approx(3.0)


def test_a_step_that_is_overdue_does_not_close_before_an_earlier_one_that_is_not() -> None:
    ranks = Ranks()
    ranks.report(0, 2, now=0.0)
    ranks.report(0, 1, now=1.5)

    assert ranks.closed_steps(now=2.5) == []
    assert ranks.closed_steps(now=3.5) == [1, 2]


def test_a_report_for_a_closed_step_is_counted_as_late_and_goes_no_further() -> None:
    ranks = Ranks()
    ranks.report(0, 1, now=0.0)
    ranks.closed(now=5.0)

    ranks.report(1, 1, now=6.0)

    assert ranks.aligner.num_late == 1
    assert ranks.closed_steps(now=100.0) == []


def test_a_report_that_comes_twice_counts_once() -> None:
    ranks = Ranks()
    ranks.report(0, 1)
    ranks.aligner.add(0, a_report(1, loss=99.0), 0.0)
    ranks.report(1, 1)

    (step,) = ranks.closed()
    assert step.loss.tolist() == [0.0, 1.0]
    assert ranks.aligner.num_duplicate == 1


def test_a_lost_report_holds_nothing_up() -> None:
    ranks = Ranks()
    for step in range(1, 101):
        ranks.report(0, step)
        if step % 10:
            ranks.report(1, step)
    ranks.report(1, 101)
    ranks.report(0, 101)

    assert ranks.closed_steps() == list(range(1, 102))
    assert ranks.aligner.num_incomplete == 10


def test_a_rank_that_left_is_not_waited_for() -> None:
    ranks = Ranks()
    ranks.report(0, 1)
    ranks.gone = {1}

    (step,) = ranks.closed()
    assert step.num_present == 1
    assert ranks.aligner.num_incomplete == 0


def test_when_nobody_is_expected_any_more_everything_closes() -> None:
    ranks = Ranks()
    for step in range(1, 5):
        ranks.report(0, step)
    ranks.gone = {0, 1}

    assert ranks.closed_steps() == [1, 2, 3, 4]


def test_no_more_steps_are_open_than_the_limit() -> None:
    ranks = Ranks()
    for step in range(1, MAX_OPEN + 51):
        ranks.report(0, step)

    assert ranks.closed_steps() == list(range(1, 51))


def test_reports_for_steps_without_end_are_dropped_and_counted() -> None:
    ranks = Ranks()
    for step in range(1, 3 * MAX_OPEN + 1):
        ranks.report(0, step)
    assert ranks.aligner.num_late == MAX_OPEN
    ranks.report(1, 5)

    assert len(ranks.closed_steps()) == MAX_OPEN
    assert ranks.aligner.num_late == MAX_OPEN


def test_steps_of_a_huge_world_close_a_few_at_a_time() -> None:
    ranks = Ranks(MAX_RANKS)
    for step in range(1, 11):
        ranks.report(0, step)

    closed = [ranks.closed_steps(60.0) for _ in range(4)]

    assert [len(steps) for steps in closed] == [4, 4, 2, 0]
    assert [step for steps in closed for step in steps] == list(range(1, 11))


@pytest.mark.parametrize("num_reporting", [1, 100])
def test_waiting_costs_what_ranks_have_reported_and_not_what_the_world_is_said_to_be(num_reporting: int) -> None:
    def num_calls(world: int) -> int:
        """Calls, also of functions in C: a loop over ranks makes some in each round."""
        ranks, calls = Ranks(world), []
        for rank in range(num_reporting):
            ranks.report(rank, 1)
        sys.setprofile(lambda _frame, event, _argument: calls.append(event))
        try:
            closed = ranks.closed_steps(1.0)
        finally:
            sys.setprofile(None)
        assert closed == []
        return len(calls)

    assert num_calls(MAX_RANKS) == num_calls(num_reporting + 1)


def test_steps_may_be_counted_from_any_number() -> None:
    ranks = Ranks()
    for rank in range(2):
        ranks.report(rank, 0)
        ranks.report(rank, 2**53)

    assert ranks.closed_steps() == [0, 2**53]


def test_nothing_is_closed_when_nothing_is_open() -> None:
    assert Ranks().closed_steps(now=1e9) == []


def test_a_step_kept_for_later_has_what_was_said_and_reduced_but_no_arrays() -> None:
    reports = {
        rank: a_report(is_sampled=True, arrays={"update_ratio": np.full(4, 0.1 + rank, dtype=np.float32)})
        for rank in range(2)
    }
    step = combine(reports, attempt=1, step=1, world=2, layers=LAYERS)

    kept = step.without_arrays()

    assert all(not report.arrays for report in kept.reports.values())
    assert kept.reports[1].phases == reports[1].phases
    assert kept.layer_values("update_ratio") is step.layer_values("update_ratio")
    assert step.reports[0].arrays, "the step itself is as it was"


def norms_by_step(*scales: tuple[float, ...]) -> list[AlignedStep]:
    """Steps in which the ranks' norms are those of one gradient, times their scales."""
    aligner = Aligner(attempt=1)
    for number, of_ranks in enumerate(scales, 1):
        for rank, scale in enumerate(of_ranks):
            norms = np.array([3.0, 4.0, 12.0, 84.0], dtype=np.float32) * np.float32(scale)
            aligner.add(rank, a_report(number, arrays={"grad_norm": norms}), 0.0)
    return list(aligner.close(set(), len(scales[0]), LAYERS, 0.0))


def test_ranks_that_begin_with_equal_batches_and_gradients_of_their_own_have_a_norm_only_while_they_agree() -> None:
    same, apart = (1.0, 1.0, 1.0, 1.0), (1.0, 1.3, 0.8, 1.0)
    steps = norms_by_step(*[same] * 30, apart, *[same] * 5, apart, apart, same, apart)
    assert [step.grad_norm is None for step in steps] == [False] * 30 + [True] + [False] * 5 + [True] * 4
    assert [step.has_local_gradients for step in steps[-2:]] == [True, True], "three steps decide"
    assert len(steps[-1].whole_layer_grad_norm) == 0, "nothing is shown as the norm of a layer"
    assert len(steps[-1].layer_grad_norm) == len(LAYERS), "rules still find a NaN in it"


@pytest.mark.parametrize(("difference", "is_known"), [(0.005, False), (0.001, False), (1e-4, True), (0.0, True)])
def test_norms_of_large_batches_differ_little_and_are_still_each_ranks_own(difference: float, is_known: bool) -> None:
    (step,) = norms_by_step((1.0, 1.0 + difference))
    assert (step.grad_norm is not None) == is_known


def test_a_rank_whose_norms_are_not_finite_shows() -> None:
    (step,) = norms_by_step((1.0, float("nan")))
    assert step.has_bad_grad_norm


def test_a_clippers_norm_is_not_that_of_the_whole_where_layers_are_placed_in_an_unknown_way() -> None:
    layers = tuple(msgspec.structs.replace(layer, placement="unknown", replicas=1) for layer in LAYERS)
    reports = {rank: a_report(arrays={}, clipping=Clipping(max_norm=1.0, total_norm=7.0)) for rank in range(2)}
    assert combine(reports, attempt=1, step=1, world=2, layers=layers).grad_norm is None
    assert combine(reports, attempt=1, step=1, world=2, layers=LAYERS).grad_norm == 7.0
    average = (*LAYERS, msgspec.structs.replace(LAYERS[0], name="average", placement="unknown", held=False))
    assert combine(reports, attempt=1, step=1, world=2, layers=average).grad_norm == 7.0
