"""A job that floods the daemon takes its share and no more: its neighbours are judged, and it is named."""

import itertools
import logging
import time
from pathlib import Path

import pytest

from caboose_daemon.jobs.job_load import FULL_STEPS, LOW_STEPS, SLICE_SECONDS, JobLoad
from caboose_daemon.jobs.pipeline import Pipeline
from caboose_wire import StepReports
from support.processes import DaemonProcess, running_daemon, wait_until
from support.ranks import a_hello, a_report, send_steps, simulated_ranks
from support.recorder import Core


def slow_core(seconds: float) -> Core:
    """Where each look at the clock takes so long, and each step one look."""
    core = Core()
    ticks = itertools.count()
    core.pipeline = Pipeline(core.state, core.sink, timer=lambda: seconds * next(ticks))
    core.receiver._pipeline = core.pipeline
    return core


def test_a_job_with_many_steps_does_not_keep_its_neighbour_waiting() -> None:
    core = slow_core(SLICE_SECONDS / 4)
    for job in ("flood", "quiet"):
        core.say(job.encode(), a_hello(job=job, world=1, incarnation=f"incarnation-{job}"))
    for step in range(1, 201):
        core.say(b"flood", a_report(step))
    core.say(b"quiet", a_report(1))
    core.pipeline.advance(1.0)
    assert core.state.jobs["quiet"].num_steps == 1
    assert core.state.jobs["flood"].num_steps == 4, "steps that take a quarter of its share each"
    assert core.pipeline.is_crowded
    core.pipeline.advance(2.0)
    assert core.state.jobs["flood"].num_steps == 8, "nobody else waits, but somebody may the next moment"
    for turn in range(3, 100):
        core.pipeline.advance(float(turn))
    assert core.state.jobs["flood"].num_steps == 200
    assert not core.state.jobs["flood"].load.is_throttled
    assert not core.pipeline.is_crowded


def test_a_job_alone_has_all_the_time() -> None:
    core = slow_core(SLICE_SECONDS)
    core.say(b"flood", a_hello(job="flood", world=1, incarnation="incarnation-flood"))
    for step in range(1, 201):
        core.say(b"flood", a_report(step))
    core.pipeline.advance(1.0)
    assert core.state.jobs["flood"].num_steps == 200


def test_a_job_that_never_catches_up_is_throttled_and_named(caplog: pytest.LogCaptureFixture) -> None:
    core = slow_core(SLICE_SECONDS)
    for job in ("flood", "quiet"):
        core.say(job.encode(), a_hello(job=job, world=1, incarnation=f"incarnation-{job}"))
    step = 0
    with caplog.at_level(logging.WARNING, "caboose.daemon"):
        for turn in range(1, 40):
            for _ in range(100):
                step += 1
                core.say(b"flood", a_report(step), float(turn))
            core.say(b"quiet", a_report(turn), float(turn))
            core.pipeline.advance(float(turn))
            assert core.state.jobs["quiet"].num_steps == turn
    load = core.state.jobs["flood"].load
    assert load.is_throttled
    assert load.num_throttled > 0
    assert core.state.jobs["quiet"].load.num_throttled == 0
    assert sum("job flood sends more steps" in record.message for record in caplog.records) == 1


@pytest.mark.parametrize(
    ("num_open", "was_cut", "is_throttled"), [(FULL_STEPS, True, True), (FULL_STEPS, False, False)]
)
def test_only_a_job_that_had_to_stop_for_others_is_throttled(num_open: int, was_cut: bool, is_throttled: bool) -> None:
    load = JobLoad()
    load.note("job", num_open - 1, 1.0, was_cut=True)
    assert not load.is_throttled
    load.note("job", num_open, 2.0, was_cut=was_cut)
    assert load.is_throttled is is_throttled
    load.note("job", LOW_STEPS, 3.0, was_cut=True)
    assert not load.is_throttled


@pytest.mark.slow
def test_a_flood_over_real_sockets_leaves_its_neighbours_alone(tmp_path: Path) -> None:
    with (
        running_daemon(tmp_path) as daemon,
        simulated_ranks(daemon.endpoint, 1, {"job": "flood"}) as flood,
        simulated_ranks(daemon.endpoint, 2, {"job": "quiet"}) as quiet,
    ):
        first, steps, deadline = 1, 0, time.monotonic() + 6
        while time.monotonic() < deadline:
            steps += 1
            send_steps(quiet, steps, steps)
            for _ in range(20):
                flood[0].send(StepReports(reports=tuple(a_report(first + n, arrays={}) for n in range(64))))
                first += 64
            assert wait_until(lambda seen=steps: daemon.step("quiet") == seen, 2), "while the flood goes on"
        counts = throttled(daemon)
    assert counts["quiet"] == 0, "of the flood, as many as this machine cannot judge"


def throttled(daemon: DaemonProcess) -> dict[str, float]:
    """Messages of each job that were not taken in their turn."""
    lines = [line for line in daemon.text("/metrics").splitlines() if line.startswith("caboose_job_throttled_messages")]
    return {line.split('"')[1]: float(line.rsplit(" ", 1)[1]) for line in lines}
