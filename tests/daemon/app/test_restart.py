"""A daemon killed at any instant comes back with its jobs, steps and findings, and the findings can still end."""

import math
import sqlite3
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from caboose_daemon.ingest.admission import PATIENCE_SECONDS
from caboose_daemon.jobs.job import Job
from caboose_daemon.out.api import json_shapes
from caboose_daemon.rollback.modes import owners_mode
from caboose_daemon.store import retention
from caboose_wire import Batch, Layer
from support.old_journals import make_old
from support.processes import running_daemon, wait_until
from support.ranks import SimulatedRank, a_report, simulated_ranks
from support.scenario import INF, NAN, JournaledCore, Scenario, scenario

Make = Callable[..., JournaledCore]
MATRICES = tuple(Layer(name=f"layer{n}.weight", numel=64 * 64, kind="Linear") for n in range(4))


# Through real processes


def answer_hello(ranks: list[SimulatedRank]) -> bool:
    """Does what an agent does when it is asked who it is."""
    for rank in ranks:
        if rank.receive(timeout=0.2) is not None:
            rank.send(rank.hello)
    return True


def test_a_killed_daemon_comes_back_with_everything_and_the_run_goes_on(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as first:
        endpoint = first.endpoint
        with simulated_ranks(endpoint, 2) as ranks:
            for step in range(1, 31):
                for rank in ranks:
                    rank.send(a_report(step, loss=NAN if step == 20 and rank is ranks[1] else 2.0))
            assert wait_until(lambda: _num_steps(first.get("/api/v1/jobs")) == 30, 10)
            before = first.get("/api/v1/jobs/train/findings")["findings"]
            first.kill()

            with running_daemon(tmp_path, listen=endpoint) as second:
                job = second.get("/api/v1/jobs/train")
                assert (job["state"], job["step"], job["num_steps"], job["attempt"]) == ("known", 30, 30, 1)
                assert job["num_non_finite"] == 1
                assert [rank["state"] for rank in job["ranks"]] == ["expected", "expected"]
                assert second.get("/api/v1/jobs/train/findings")["findings"] == before
                assert len(second.get("/api/v1/jobs/train/series")["steps"]) == 30

                for rank in ranks:
                    rank.send(a_report(31))
                assert wait_until(lambda: answer_hello(ranks) and _num_steps(second.get("/api/v1/jobs")) == 31, 15)
                job = second.get("/api/v1/jobs/train")
                assert (job["state"], job["attempt"], job["num_live"], job["num_layers"]) == ("running", 1, 2, 4)


def test_a_forged_hello_cannot_take_over_a_job_whose_daemon_was_restarted(tmp_path: Path) -> None:
    """It comes before the ranks, with their launch id and incarnation, and not with their proof."""
    told = {"proof": "0123456789abcdef" * 4}
    with running_daemon(tmp_path) as first:
        endpoint = first.endpoint
        with simulated_ranks(endpoint, 2, told) as ranks:
            for step in range(1, 11):
                for rank in ranks:
                    rank.send(a_report(step))
            assert wait_until(lambda: _num_steps(first.get("/api/v1/jobs")) == 10, 10)
            first.kill()

            with running_daemon(tmp_path, listen=endpoint) as second, simulated_ranks(endpoint, 2) as forgers:
                for forger, real in zip(forgers, ranks, strict=True):
                    for claim in ({"attempt": 1}, {"incarnation": real.hello.incarnation}, {"launch": "another"}):
                        forger.send(msgspec.structs.replace(real.hello, **{"proof": "", **claim}))  # type: ignore[arg-type]
                    forger.send(a_report(11, loss=1e9))
                    forger.send_raw([b"the last"])
                assert wait_until(lambda: sum(second.get("/api/v1/daemon")["num_refused"].values()) == 2, 10)
                job = second.get("/api/v1/jobs/train")
                assert (job["attempt"], [rank["state"] for rank in job["ranks"]]) == (1, ["expected"] * 2)

                for rank in ranks:
                    rank.send(a_report(11))
                assert wait_until(lambda: answer_hello(ranks) and _num_steps(second.get("/api/v1/jobs")) == 11, 15)
                job = second.get("/api/v1/jobs/train")
                assert (job["state"], job["attempt"], job["num_live"], job["loss"]) == ("running", 1, 2, 2.0)


def _num_steps(jobs: dict[str, list[dict[str, int]]]) -> int:
    return max((job["step"] for job in jobs["jobs"]), default=0)


# What is kept


def test_jobs_steps_findings_and_events_are_kept(journaled: Make) -> None:
    story = scenario(core=journaled()).declares("data_switch").nan_loss(1, at=10).healthy(5)
    before = story.job

    after = story.daemon_restarts().job

    assert repr(after.recent) == repr(before.recent), "NaN is unequal to itself, but reads the same"
    assert list(after.episodes) == list(before.episodes)
    assert list(after.events) == list(before.events)
    assert (after.num_steps, after.num_non_finite, after.num_attempts) == (15, 1, 1)
    assert after.finding_counts == before.finding_counts


def test_what_sampled_steps_showed_is_kept(journaled: Make) -> None:
    """Memory that grew, the range of the inputs, the size of updates: a diagnosis after the restart reads all of it."""
    story = scenario(ranks=2, core=journaled(), layers=MATRICES, norms=[1.0] * len(MATRICES)).healthy(10)
    for gib in range(1, 6):
        story.meanwhile(host_bytes=gib * 2**30, batch=Batch(7, 0, (8, 3), 0, -1.0, float(gib)), sample_every=20)
        story.sampled(update_ratio=[1e-3] * len(MATRICES)).healthy(3)
    before = story.job.copy()

    after = story.daemon_restarts().job

    assert list(after.samples) == list(before.samples)
    assert [use.host for use in after.memory] == [gib * 2**30 for gib in range(1, 6)]
    assert [(one.lowest, one.highest, set(one.updates)) for one in after.samples][-1] == (-1.0, 5.0, {""})
    story.nan_loss(0, at=story.step + 1)
    (incident,) = story.job.incidents.open
    case = story.job.case(incident)
    assert (len(case.memory_use), len(case.input_ranges), len(case.update_ratios)) == (5, 5, 5)


def test_the_last_sampled_reports_are_kept_for_the_page_and_for_diagnoses(journaled: Make) -> None:
    story = scenario(ranks=2, core=journaled()).healthy(10)
    story.meanwhile(batch=Batch(7, 0, (8, 3), 0, -1.0, 1.0), sample_every=20, num_scheduler_steps=11).sampled()
    before = json_shapes.agent_facts(story.job)

    job = story.daemon_restarts().job

    assert json_shapes.agent_facts(job) == before
    assert before is not None
    assert (before["sample_every"], before["batch_shape"]) == (20, [8, 3])
    assert job.last_sampled is not None
    assert job.last_sampled.num_present == 2
    assert job.scheduler_steps_at(11) == 11


def test_what_the_ranks_said_of_themselves_is_kept(journaled: Make) -> None:
    """The mode of rollback and the versions, also of a run that is over, whose ranks say it no more."""
    story = scenario(ranks=2, core=journaled(), rollback="advise", agent_version="1.2.3", torch_version="2.13.0")
    story.healthy(10).leaves(0, 1).wait(2.0)
    before, mode = json_shapes.agent_facts(story.job), owners_mode(story.job)
    assert before is not None

    job = story.daemon_restarts().wait(2.0).job

    after = json_shapes.agent_facts(job)
    assert after is not None
    assert (owners_mode(job), mode) == ("advise", "advise")
    assert [after[key] for key in ("version", "torch_version")] == ["1.2.3", "2.13.0"]
    assert [member.hello.rank for member in story.members.values()] == [0, 1]
    assert {member.hello.proof for member in story.members.values()} == {""}


def counted(job: Job) -> tuple[object, ...]:
    return job.num_steps, job.num_non_finite, job.finding_counts, job.incident_counts


def test_what_was_counted_does_not_fall_though_the_journal_forgets(
    journaled: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "SWEEP_EVERY", 20)
    story = scenario(ranks=1, core=journaled(max_steps=10, retention_days=1.0)).healthy(10).nan_loss(0, at=11, steps=3)
    story.healthy(20)
    story.now += 2 * 86_400
    story.healthy(27)
    before = counted(story.job)
    connection = sqlite3.connect(tmp_path / "journal.sqlite")
    left = [
        connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in ("steps", "episodes", "incidents")
    ]
    connection.close()
    assert left == [10, 0, 0], "the rows are gone"

    after = counted(story.daemon_restarts().job)
    story.healthy(1)

    assert before == after == (60, 3, {("non_finite", "warning"): 1}, {"non_finite": 1})
    assert story.job.num_steps == 61


def test_a_journal_that_kept_no_totals_begins_with_what_it_has(journaled: Make) -> None:
    story = scenario(ranks=1, core=journaled()).healthy(10).nan_loss(0, at=11, steps=3).healthy(20)
    before = counted(story.job)
    story.core.close()  # type: ignore[attr-defined]  # a JournaledCore
    make_old(story.core.journal.path, 4)  # type: ignore[attr-defined]  # a JournaledCore

    assert counted(story.daemon_restarts().job) == before
    assert counted(story.healthy(1).daemon_restarts().job)[0] == 34


def test_nan_and_infinity_survive(journaled: Make) -> None:
    story = scenario(ranks=1, core=journaled()).losses(1.0, NAN, INF, -INF).nan_gradient(0, at=5)

    restored = [(summary.loss, summary.grad_norm) for summary in story.daemon_restarts().job.recent]

    assert restored[0] == (1.0, story.core.state.jobs["train"].recent[0].grad_norm)
    assert math.isnan(restored[1][0] or 0)
    assert (restored[2][0], restored[3][0]) == (INF, -INF)
    assert math.isnan(restored[4][1] or 0)
    assert story.job.num_non_finite == 4


def test_what_was_not_reported_stays_unreported(journaled: Make) -> None:
    story = scenario(ranks=1, core=journaled()).says(0, a_report(1, loss=None, phases=None, arrays={})).wait(1.0)

    (summary,) = story.daemon_restarts().job.recent
    assert (summary.loss, summary.grad_norm, summary.step_seconds) == (None, None, None)


def test_a_report_that_was_counted_before_the_restart_is_not_counted_again(journaled: Make) -> None:
    story = scenario(ranks=1, core=journaled()).healthy(10).daemon_restarts()

    story.says(0, a_report(10)).healthy(1)

    assert story.job.num_steps == 11
    assert story.job.attempt is not None
    assert story.job.attempt.aligner.num_late == 1


def test_a_relaunch_while_the_daemon_was_away_is_a_new_attempt(journaled: Make) -> None:
    """Once the ranks of before had time to come back; nothing of it is lost."""
    story = scenario(core=journaled()).healthy(10).daemon_restarts(60.0)
    again = scenario(core=story.core, launch="run-2", incarnation="incarnation-new", now=story.now).healthy(3)
    assert again.job.num_attempts == 1

    again.wait(PATIENCE_SECONDS)

    assert again.job.num_attempts == 2
    assert [(s.attempt, s.step) for s in again.job.recent][-4:] == [(1, 10), (2, 1), (2, 2), (2, 3)]


def test_ranks_that_left_or_failed_are_still_known_as_that(journaled: Make) -> None:
    story = scenario(core=journaled()).healthy(5).leaves(1).leaves(2, error="RuntimeError: boom").wait(1.0)

    members = story.daemon_restarts().members

    assert [members[rank].state for rank in range(4)] == ["expected", "left", "failed", "expected"]
    assert members[2].error == "RuntimeError: boom"


# What was open


def test_an_open_spike_ends_when_the_loss_is_back_at_its_old_level(journaled: Make) -> None:
    story = scenario(ranks=1, core=journaled()).loss_spike(at=41, height=3.0, steps=5)
    (before,) = story.job.episodes.open

    story.daemon_restarts().losses(6.0)
    (still,) = story.job.episodes.open
    assert (still.id, still.severity, still.num_findings) == (before.id, "critical", before.num_findings + 1)

    story.healthy(3)
    assert story.job.health == "ok"
    last = story.only("loss_spike").last
    assert (last.state, last.values["loss"], last.values["peak"]) == ("resolved", 2, 6)


def test_an_open_nan_keeps_its_origin_and_ends_with_the_numbers(journaled: Make) -> None:
    story = scenario(core=journaled()).nan_loss(1, at=10).nan_loss(0, 1, 2, 3, at=11)

    last = story.daemon_restarts().nan_loss(0, 1, 2, 3, at=12).only("non_finite").last
    assert (last.ranks, last.onset_step, last.phase) == ((1,), 10, "forward")

    assert story.healthy(3).only("non_finite").last.state == "resolved"
    assert story.job.health == "ok"


def test_a_loss_stuck_at_zero_stays_found(journaled: Make) -> None:
    story = scenario(ranks=1, core=journaled()).zero_loss(at=10, steps=5).daemon_restarts().losses(*[0.0] * 20)

    assert story.only("non_finite").is_open


def a_job_with_a_silent_rank(core: JournaledCore) -> Scenario:
    return scenario(core=core).healthy(30).falls_silent(1).wait(20.0)


def test_an_open_silence_ends_when_the_rank_is_heard_again(journaled: Make) -> None:
    story = a_job_with_a_silent_rank(journaled()).daemon_restarts().speaks(1).wait(20.0)

    assert story.only("rank_silent").last.state == "resolved"
    assert story.job.health == "ok"


def test_an_open_silence_goes_on_while_the_rank_stays_away(journaled: Make) -> None:
    story = a_job_with_a_silent_rank(journaled())
    (before,) = story.job.episodes.open

    story.daemon_restarts().wait(15.0)

    (still,) = story.job.episodes.open
    assert still.id == before.id
    assert still.last.ranks == (1,)


def test_a_rank_that_died_while_the_daemon_was_away_is_missed(journaled: Make) -> None:
    story = scenario(core=journaled()).healthy(30).daemon_restarts(5.0).falls_silent(2).wait(8.0)
    assert story.is_silent

    first = story.wait(5.0).only("rank_silent").first
    assert (first.ranks, first.severity) == ((2,), "warning")


def test_of_a_job_nobody_of_which_comes_back_nothing_is_claimed(journaled: Make) -> None:
    story = scenario(core=journaled()).healthy(30).falls_silent(0, 1, 2, 3).daemon_restarts().wait(600.0)

    assert story.is_silent
    assert story.job.state == "known"


def test_what_was_open_of_a_job_nobody_of_which_comes_back_stays_open(journaled: Make) -> None:
    story = scenario(core=journaled()).healthy(30).falls_silent(0, 1, 2, 3).wait(40.0).daemon_restarts().wait(60.0)

    (episode,) = story.job.episodes.open
    assert (episode.rule, episode.severity) == ("rank_silent", "warning")
