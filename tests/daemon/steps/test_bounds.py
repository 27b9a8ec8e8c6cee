"""Numbers beyond what can be calculated with: infinite, and the step is judged."""

import math

import numpy as np
import pytest

from caboose_daemon.steps.bounds import LIMIT, bounded, infinite_beyond
from caboose_daemon.steps.settings import as_number
from caboose_wire import Batch, Clipping, Phases, Scaler
from support.ranks import EVERYTHING, a_report
from support.scenario import scenario

NAN, INF = math.nan, math.inf


def test_a_report_within_the_limit_is_not_copied() -> None:
    report = a_report(loss=LIMIT, lr=(1e-3, -LIMIT), metrics={"a": 1.0}, clipping=Clipping(1.0, None))
    assert bounded(report) is report


@pytest.mark.parametrize(
    ("value", "expected"), [(1e308, INF), (-1e101, -INF), (INF, INF), (-INF, -INF), (LIMIT, LIMIT)]
)
def test_a_number_beyond_it_is_infinite_wherever_it_is(value: float, expected: float) -> None:
    report = a_report(
        loss=value,
        local_grad_norm=value,
        agent_seconds=value,
        lr=(1.0, value),
        metrics={"a": value, "b": 1.0},
        clipping=Clipping(None, value),
        scaler=Scaler(value),
        batch=Batch(1, lowest=value),
    )
    found = bounded(report)
    clipping, scaler, batch = found.clipping, found.scaler, found.batch
    assert clipping is not None and scaler is not None and batch is not None  # noqa: PT018
    assert [found.loss, found.local_grad_norm, found.agent_seconds] == [expected] * 3
    assert (found.lr, found.metrics) == ((1.0, expected), {"a": expected, "b": 1.0})
    assert (scaler.scale, batch.lowest) == (expected, expected)
    assert (clipping.max_norm, clipping.total_norm, batch.highest) == (None, expected, None)
    assert infinite_beyond(value) == expected


@pytest.mark.parametrize("seconds", [-0.0, 0.0, -1.0, 5e-324, 1e-10, 1e308, INF, NAN])
def test_a_step_time_that_cannot_be_is_unknown(seconds: float) -> None:
    story = scenario(ranks=2).plays(2, phases=Phases(seconds, 0.0, seconds if seconds < 0 else INF), num_samples=2**53)

    last = story.job.recent[-1]
    assert (last.step_seconds, last.data_seconds, last.forward_seconds) == (None, 0.0, None)
    assert last.samples_per_second is None


def test_a_phase_may_take_no_time() -> None:
    report = a_report(phases=Phases(1e-9, 0.0, 0.0, 0.0, 0.0))
    assert bounded(report) is report


def test_nan_stays_nan() -> None:
    loss = bounded(a_report(loss=NAN)).loss
    assert loss is not None
    assert math.isnan(loss)


def test_the_fields_of_an_event_have_the_same_limit() -> None:
    assert (as_number(1e308), as_number(2**53)) == (INF, 2.0**53)


def test_a_run_whose_numbers_leave_all_bounds_is_judged_at_every_step() -> None:
    story = scenario(ranks=2, visible=EVERYTHING).healthy(30)
    norms = np.full(4, 3e38, dtype=np.float32)
    huge = {"clipping": Clipping(1.0, 1e200), "local_grad_norm": 1e200, "lr": (1e200,), "metrics": {"m": 1e308}}
    for loss in (1e150, 1e200, 1e308, -1e308):
        story.plays(2, loss=loss, is_sampled=True, arrays={"grad_norm": norms}, phases=Phases(1e308), **huge)

    assert story.job.num_steps == 38
    assert story.job.faults.num_failures == 0
    assert sum(stats.failures for stats in story.core.state.rule_stats.values()) == 0
    assert story.of("non_finite")
