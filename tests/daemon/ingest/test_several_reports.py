"""Several reports in one message: each counts as if it had come alone."""

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np

from caboose_wire import HelloRequest, Phases, Refused, StepReport, StepReports, StepRun, ThinStep, Welcome
from caboose_wire.fields import MAX_COUNT
from caboose_wire.messages import MAX_REPORTS, MAX_RUN
from support.ranks import LAYERS, a_hello, a_report
from support.recorder import Core
from support.scenario import JournaledCore


def test_only_an_agent_that_asks_is_answered_with_a_welcome() -> None:
    core = Core()

    assert core.say(b"r0", a_hello(rank=0), 0.0) == []
    assert core.say(b"r1", a_hello(rank=1, is_batching=True), 0.0) == [
        (b"r1", Welcome(max_reports=MAX_REPORTS, max_run=MAX_RUN))
    ]


def run_of(core: Core, *, together: int) -> None:
    """A run of two ranks with a spike, a NaN, a gap and repeated reports; so many reports to a message."""
    for rank in range(2):
        core.say(f"r{rank}".encode(), a_hello(rank=rank), 0.0)
    steps = [*range(1, 150), *range(153, 200), 199]
    for first in range(0, len(steps), 6):
        now = 0.01 * first
        for rank in range(2):
            made = [report_of(step, rank) for step in steps[first : first + 6]]
            for at in range(0, len(made), together):
                part = tuple(made[at : at + together])
                core.say(f"r{rank}".encode(), StepReports(reports=part) if together > 1 else part[0], now)
        core.pass_time(now)
    core.pass_time(100.0)


def report_of(step: int, rank: int) -> StepReport:
    norms = np.full(len(LAYERS), 9.0 if step == 120 else 0.1 + 0.001 * (step % 7), dtype=np.float32)
    return a_report(
        step,
        loss=float("nan") if step == 170 else 9.0 if step == 120 else 2.0 + 0.02 * (step % 5) + 0.1 * rank,
        phases=Phases(total=0.002),
        arrays={"grad_norm": norms} if step % 4 == 0 or step == 120 else {},
    )


def everything(path: Path) -> dict[str, list[tuple[object, ...]]]:
    with closing(sqlite3.connect(path)) as journal:
        names = [name for (name,) in journal.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: journal.execute(f"SELECT * FROM {name}").fetchall() for name in sorted(names)}


def test_the_journal_is_the_same_however_reports_travel(tmp_path: Path) -> None:
    found = {}
    for together in (1, 4):
        core = JournaledCore(tmp_path / f"{together}.sqlite")
        try:
            run_of(core, together=together)
            attempt = core.state.jobs["train"].attempt
            assert attempt is not None
            found[together] = (
                {kind: count for kind, count in core.state.num_frames.items() if kind == "StepReport"},
                [member.num_missed for member in attempt.members.values()],
                [summary.step for summary in core.sink.steps],
            )
        finally:
            core.close()

    assert found[1] == found[4]
    one, four = everything(tmp_path / "1.sqlite"), everything(tmp_path / "4.sqlite")
    assert len(one["steps"]) > 150
    assert repr(one) == repr(four)


def test_one_that_does_not_fit_is_refused_alone_and_once() -> None:
    core = Core()
    core.say(b"r0", a_hello(rank=0, world=1), 0.0)
    wrong = {"grad_norm": np.zeros(len(LAYERS) + 1, dtype=np.float32)}
    made = (a_report(1), a_report(2, arrays=wrong), a_report(3, arrays=wrong), a_report(4))

    replies = core.say(b"r0", StepReports(reports=made), 1.0)

    assert [message.reason for _, message in replies if isinstance(message, Refused)] == ["layer_count"]
    assert core.state.num_refused["layer_count"] == 2
    assert core.state.num_frames["StepReport"] == 2
    core.pass_time(100.0)
    assert [summary.step for summary in core.sink.steps] == [1, 4]


def test_those_of_an_unknown_peer_are_held_back_and_it_is_asked_once() -> None:
    core = Core()
    replies = core.say(b"r0", StepReports(reports=(a_report(1), a_report(2))), 0.0)
    assert replies == [(b"r0", HelloRequest())]

    core.say(b"r0", a_hello(rank=0, world=1), 0.1)
    core.pass_time(0.2)

    assert [summary.step for summary in core.sink.steps] == [1, 2]


def test_a_job_in_quarantine_counts_each_of_them() -> None:
    core = Core()
    core.may_fail = True
    core.say(b"r0", a_hello(rank=0, world=1), 0.0)
    job = core.state.jobs["train"]
    core.say(b"r0", StepReports(reports=(a_report(1),)), 0.0)
    for _ in range(100):
        if job.faults.is_quarantined:
            break
        core.state.guard.failed("test", job, RuntimeError("injected"), 0.5)
    assert job.faults.is_quarantined

    core.say(b"r0", StepReports(reports=(a_report(2), a_report(3), a_report(4))), 1.0)

    assert job.faults.num_unjudged == 3


def test_a_run_of_thin_steps_counts_as_its_reports() -> None:
    core = Core()
    core.say(b"r0", a_hello(rank=0, world=1), 0.0)
    first = a_report(1, time=100.0, loss=1.0, lr=(0.1,), phases=Phases(0.002), arrays={}, phase_every=8)
    steps = tuple(ThinStep(0.25, 1.0 - 0.01 * n, (0.1 * n,), n, 32, 64) for n in range(2, 9))
    core.say(b"r0", StepRun(first=first, steps=steps), 0.0)
    core.pass_time(10.0)

    assert core.state.num_frames["StepReport"] == 8
    assert [(s.step, s.time, s.loss, s.step_seconds) for s in core.sink.steps[1:]] == [
        (n, 100.0 + 0.25 * (n - 1), 1.0 - 0.01 * n, 0.25) for n in range(2, 9)
    ]


def test_a_run_that_cannot_be_is_refused() -> None:
    core = Core()
    core.say(b"r0", a_hello(rank=0, world=1), 0.0)
    thin = ThinStep(2.0, 1.0)
    for first in (
        a_report(1),  # it has arrays
        a_report(1, arrays={}, is_sampled=True),
        a_report(MAX_COUNT, arrays={}),
        a_report(1, arrays={}, time=float(2**53)),
    ):
        (reply,) = core.say(b"r0", StepRun(first=first, steps=(thin,)), 0.0)
        assert isinstance(reply[1], Refused)
        assert reply[1].reason == "malformed"
    core.pass_time(10.0)
    assert not core.sink.steps
