"""Whatever one job leads to: it costs that message or step, is counted, and touches neither the loop nor other jobs."""

import logging
from typing import Any

import numpy as np
import pytest

from caboose_daemon.jobs.job import Job
from caboose_daemon.jobs.job_guard import LONGEST_SECONDS, MAX_FAILURES, QUARANTINE_SECONDS, WINDOW_SECONDS, JobFaults
from caboose_daemon.jobs.meters import Meters
from caboose_daemon.out.api import json_shapes
from caboose_daemon.steps.aligned import AlignedStep
from caboose_wire import Module, PlanRequest, encode
from caboose_wire.messages import HISTOGRAM_BINS
from support.ranks import a_hello, a_report
from support.recorder import Core

MODULES = (Module("act", "ReLU", 8), Module("head", "Linear", 4))


class BrokenMeters(Meters):
    """Fails at every step: a bug that nobody thought of."""

    is_broken = True

    def observe(self, step: AlignedStep) -> None:
        if self.is_broken:
            raise ZeroDivisionError("not thought of")
        super().observe(step)


def two_jobs() -> Core:
    core = Core()
    for name in ("bad", "good"):
        core.say(name.encode(), a_hello(job=name, world=1, incarnation=f"incarnation-{name}"), 0.0)
    core.state.jobs["bad"].meters = BrokenMeters()
    core.may_fail = True
    return core


def report(core: Core, step: int, now: float) -> None:
    for name in (b"bad", b"good"):
        core.say(name, a_report(step), now)
    core.pass_time(now + 0.01)


def bad_job(core: Core) -> Job:
    return core.state.jobs["bad"]


def test_a_step_that_fails_is_counted_logged_once_and_the_other_job_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    core = two_jobs()

    with caplog.at_level(logging.ERROR):
        for step in range(1, 4):
            report(core, step, float(step))

    assert core.state.num_errors == {("step", "ZeroDivisionError"): 3}
    assert [summary.step for summary in core.sink.steps] == [1, 2, 3], "of the good job alone"
    (logged,) = caplog.records
    assert "job bad" in logged.getMessage()
    assert logged.exc_info is not None


def test_a_job_that_keeps_failing_is_quarantined_and_shown_and_the_other_is_not() -> None:
    core = two_jobs()

    for step in range(1, MAX_FAILURES + 3):
        report(core, step, float(step))

    faults = bad_job(core).faults
    assert faults.is_quarantined
    assert faults.reason == "step: ZeroDivisionError: not thought of"
    assert faults.num_unjudged == 2, "its reports still arrive"
    assert bad_job(core).health == "warning", "what nobody looks at is not shown as healthy"
    shown = json_shapes.job_facts(bad_job(core), 8.0, 3)["quarantine"]
    assert (shown["reason"], shown["num_unjudged"]) == (faults.reason, 2)
    assert 0 < shown["seconds_left"] <= QUARANTINE_SECONDS
    assert core.state.num_errors == {("step", "ZeroDivisionError"): MAX_FAILURES}
    assert bad_job(core).num_live(MAX_FAILURES + 3.0) == 1, "its ranks are not silent"
    assert not core.state.jobs["good"].faults.is_quarantined
    assert len(core.sink.steps) == MAX_FAILURES + 2


def test_a_quarantine_ends_by_itself_and_the_job_is_judged_again() -> None:
    core = two_jobs()
    for step in range(1, MAX_FAILURES + 1):
        report(core, step, float(step))
    meters = bad_job(core).meters
    assert isinstance(meters, BrokenMeters)
    meters.is_broken = False

    later = MAX_FAILURES + QUARANTINE_SECONDS + 1.0
    core.pass_time(later)
    report(core, 50, later + 1.0)

    assert not bad_job(core).faults.is_quarantined
    assert [s.step for s in bad_job(core).recent][-1] == 50


def test_each_quarantine_is_twice_as_long_up_to_an_hour() -> None:
    faults, now, lengths = JobFaults(), 0.0, []
    for _ in range(8):
        while not faults.add("again", now):
            now += 1.0
        lengths.append(faults.until - now)
        now = faults.until
        faults.release()

    assert lengths[:3] == [QUARANTINE_SECONDS, 2 * QUARANTINE_SECONDS, 4 * QUARANTINE_SECONDS]
    assert lengths[-1] == LONGEST_SECONDS


def test_rare_failures_do_not_quarantine() -> None:
    faults = JobFaults()

    assert not any(faults.add("rare", number * (WINDOW_SECONDS / (MAX_FAILURES - 2))) for number in range(50))


def test_a_new_launch_ends_the_quarantine() -> None:
    core = two_jobs()
    for step in range(1, MAX_FAILURES + 1):
        report(core, step, float(step))

    core.say(b"next", a_hello(job="bad", world=1, incarnation="incarnation-next", launch="run-2"), 100.0)

    assert not bad_job(core).faults.is_quarantined


def ones(*shape: int) -> Any:
    return np.ones(shape, dtype=np.float32)


BAD_SHAPES = {
    "a module array with a column of nothing": ({"activation_std": ones(2, 0)}, "shape"),
    "a module array of two dimensions": ({"activation_std": ones(2, 2)}, "shape"),
    "more modules than the Hello has": ({"activation_max": ones(3)}, "layer_count"),
    "a flat histogram": ({"activation_histogram": ones(2)}, "shape"),
    "a histogram of other bins": ({"activation_histogram": ones(2, HISTOGRAM_BINS - 1)}, "shape"),
    "a flat histogram of layers": ({"grad_histogram": ones(4)}, "shape"),
    "a table of norms": ({"grad_norm": ones(2, 2)}, "shape"),
    "norms in two dimensions": ({"weight_norm": ones(4, 1)}, "shape"),
    "fingerprints of some layers": ({"layer_fingerprint": ones(2)}, "layer_count"),
}


@pytest.mark.parametrize(("arrays", "reason"), BAD_SHAPES.values(), ids=list(BAD_SHAPES))
def test_an_array_of_a_wrong_shape_is_refused_before_anything_reads_it(arrays: dict[str, Any], reason: str) -> None:
    core = Core()
    for rank in range(2):
        core.say(f"r{rank}".encode(), a_hello(rank=rank, modules=MODULES), 0.0)
    good = {"grad_norm": ones(4), "activation_std": ones(2)}

    core.say(b"r0", a_report(1, is_sampled=True, arrays={**good, **arrays}), 1.0)
    core.say(b"r1", a_report(1, is_sampled=True, arrays=good), 1.0)
    core.pass_time(1.1)
    core.pass_time(9.0)

    assert core.state.num_refused == {reason: 1}
    assert [summary.step for summary in core.sink.steps] == [1], "with the other rank's report"


def test_slices_of_fingerprints_that_do_not_cover_all_layers_are_refused() -> None:
    core = Core()
    core.say(b"r0", a_hello(rank=0, world=1), 0.0)

    core.say(b"r0", a_report(1, arrays={"local_grad_norm": ones(2)}, slices={"local_grad_norm": (0, 1)}), 1.0)

    assert core.state.num_refused == {"layer_count": 1}


def test_a_plan_of_a_hundred_checkpoints_with_long_paths_fits_into_a_message() -> None:
    core = Core()
    core.say(b"r0", a_hello(rank=0, world=1), 0.0)
    job = core.state.jobs["train"]
    for step in range(1, 151):
        saved = {"path": f"/{'checkpoints/' * 120}step-{step}", "step": step}
        core.pipeline.declare(job, an_event("checkpoint", step, saved))
    core.pass_time(1.0)

    ((_, plan),) = core.say(b"someone", PlanRequest(job="train"), 2.0)

    assert encode(plan)
    assert [checkpoint.step for checkpoint in plan.checkpoints][:2] == [150, 149], "the best come first"
    assert 10 < len(plan.checkpoints) < 100


def an_event(kind: str, step: int, fields: dict[str, Any]) -> Any:
    from caboose_wire import Event

    return Event(attempt=1, step=step, time=1000.0 + step, kind=kind, fields=fields)


def test_one_jobs_clock_does_not_move_another_jobs_lag() -> None:
    core = Core()
    for name in ("slow", "good"):
        core.say(name.encode(), a_hello(job=name, world=1, incarnation=f"incarnation-{name}"), 1000.0)

    core.say(b"slow", a_report(1, time=400.0), 1001.0)
    core.say(b"good", a_report(1, time=1000.9), 1001.0)
    core.pass_time(1001.1)

    assert core.state.jobs["good"].lag_seconds < 1.0 < core.state.jobs["slow"].lag_seconds
