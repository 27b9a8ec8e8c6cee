"""The step that all expected ranks have reached, found without looking at every rank for every report."""

import time

from hypothesis import given
from hypothesis import strategies as st

from caboose_daemon.steps.alignment import Aligner
from caboose_daemon.steps.arrivals import Arrivals
from support.ranks import LAYERS, a_report

RANKS = st.integers(0, 5)
ACTIONS = st.lists(
    st.one_of(st.tuples(RANKS, st.integers(0, 9)), st.frozensets(RANKS, max_size=5), st.just(None)), max_size=60
)


@given(ACTIONS)
def test_it_is_the_lowest_of_all_that_are_not_gone(actions: list[tuple[int, int] | frozenset[int] | None]) -> None:
    arrivals, reached, gone = Arrivals(), dict[int, int](), frozenset[int]()
    for action in actions:
        if isinstance(action, tuple):
            rank, step = action
            arrivals.add(rank, step)
            reached[rank] = max(step, reached.get(rank, -1))
        elif isinstance(action, frozenset):
            gone = action
        num_expected = 6 - len(gone)
        here = [step for rank, step in reached.items() if rank not in gone]
        expected = min(here) if num_expected and len(here) == num_expected else -1
        if not num_expected:
            expected = max(reached.values(), default=-1)
        assert arrivals.watermark(gone, num_expected) == expected


def test_a_report_costs_the_same_in_a_large_job() -> None:
    small, large = seconds_per_report(64), seconds_per_report(4096)
    assert large < 8 * small  # when every report looked at every rank: 26 times


def seconds_per_report(world: int) -> float:
    """CPU time of a report of the second step, and of asking after it for complete steps; the best of three."""
    first, second, best = a_report(1), a_report(2), float("inf")
    for _ in range(3):
        aligner = Aligner(1)
        for rank in range(world):
            aligner.add(rank, first, 0.0)
        assert len(list(aligner.close(frozenset(), world, LAYERS, 0.0))) == 1
        began = time.thread_time()
        for rank in range(world - 1):
            aligner.add(rank, second, 0.0)
            assert not list(aligner.close(frozenset(), world, LAYERS, 0.0))
        best = min(best, (time.thread_time() - began) / (world - 1))
    return best
