"""job_stalled: nothing moves though everybody lives, and the pauses that are none of that."""

import functools
from pathlib import Path
from typing import Any

import pytest

from caboose_daemon.rules.job_stalled import JobStalledConfig
from support.ranks import a_report
from support.scenario import JournaledCore, Scenario
from support.scenario import scenario as of_all_rules
from support.summaries import lacks

scenario = functools.partial(of_all_rules, about="job_stalled rank_silent")


def a_running_job(ranks: int = 4, **settings: Any) -> Scenario:
    """Sixty steps of half a second."""
    return scenario(ranks, **settings).healthy(60)


# The threshold


def test_is_silent_up_to_two_minutes_and_speaks_then() -> None:
    story = a_running_job().wait(118.0)
    assert story.is_silent

    episode = story.wait(4.0).only("job_stalled")
    assert (episode.severity, episode.first.ranks, episode.first.onset_step) == ("warning", (), 60)
    assert lacks(episode.first.summary, "no step for 12", " s after step 60", "a step takes 5") == []


def test_pages_after_ten_minutes() -> None:
    story = a_running_job().wait(597.0)
    assert story.only("job_stalled").severity == "warning"

    assert story.wait(5.0).only("job_stalled").severity == "critical"


def test_a_job_of_slow_steps_has_thirty_of_them() -> None:
    story = scenario(2, step_seconds=20.0)
    for _ in range(20):
        story.wait(20.0)
        story.step_seconds = 0.0
        story.healthy(1)

    assert story.wait(580.0).is_silent
    assert story.wait(30.0).only("job_stalled").severity == "warning"


def test_thresholds_can_be_configured() -> None:
    rules = {"job_stalled": JobStalledConfig(warn_seconds=30.0, critical_seconds=60.0)}
    story = a_running_job(rules=rules).wait(28.0)
    assert story.is_silent
    assert story.wait(4.0).only("job_stalled").severity == "warning"

    assert story.wait(30.0).only("job_stalled").severity == "critical"


def test_a_long_stall_is_one_episode() -> None:
    story = a_running_job().wait(3600.0)

    assert story.only("job_stalled").last.values["seconds"] == pytest.approx(3600.0, abs=3.0)


# Who is behind


def test_the_rank_that_did_not_finish_the_step_of_the_others_is_named() -> None:
    story = a_running_job(4)
    for rank in (0, 1, 3):
        story.says(rank, a_report(61, time=story.now))
    for rank in range(4):
        story.beats(rank, step=60 if rank == 2 else 61)
    story.wait(200.0)

    last = story.only("job_stalled").last
    assert last.ranks == (2,)
    assert lacks(last.summary, "rank 2 (node2) behind, at step 60") == []


# Recovery


def test_is_over_when_a_step_ends() -> None:
    story = a_running_job().wait(200.0).healthy(3)

    episode = story.only("job_stalled")
    assert (episode.is_open, episode.last.state) == (False, "resolved")
    assert story.healthy(100).only("job_stalled").num_findings == episode.num_findings


def test_is_over_when_the_job_ends() -> None:
    story = a_running_job().wait(200.0).leaves(0, 1, 2, 3).wait(5.0)

    assert story.only("job_stalled").last.state == "resolved"


def test_a_restarted_daemon_takes_it_up_again_and_ends_it(tmp_path: Path) -> None:
    story = a_running_job(2, core=JournaledCore(tmp_path / "journal")).wait(200.0).daemon_restarts().wait(30.0)
    (episode,) = story.job.episodes
    assert episode.is_open

    story.healthy(5)
    (episode,) = story.job.episodes
    assert (episode.is_open, episode.first.onset_step) == (False, 60)
    story.core.close()  # type: ignore[attr-defined]  # a journaled core


# Look-alikes


def test_before_the_first_step_there_is_half_an_hour() -> None:
    story = scenario(4).wait(1790.0)
    assert story.is_silent

    episode = story.wait(20.0).only("job_stalled")
    assert episode.severity == "warning"
    assert "no step has ended yet" in episode.first.summary
    assert story.wait(1800.0).only("job_stalled").severity == "critical"


def test_a_job_that_stopped_before_it_was_looked_at_has_begun_all_the_same() -> None:
    story = scenario(2, step_seconds=0.001, joined=()).wait(0.1).joins(0, 1).healthy(300).wait(118.0)
    assert story.is_silent

    assert story.wait(5.0).only("job_stalled").first.onset_step == 300


def test_a_resumed_job_that_compiles_has_the_same_patience() -> None:
    story = scenario(4, start_step=5000)
    for rank in range(4):
        story.beats(rank, step=5000)

    assert story.wait(1700.0).is_silent


@pytest.mark.parametrize("kind", ["checkpoint", "evaluation", "validation"])
def test_after_a_declared_evaluation_or_checkpoint_there_is_half_an_hour(kind: str) -> None:
    story = a_running_job().declares(kind).wait(1700.0)
    assert story.is_silent

    assert story.wait(200.0).only("job_stalled")


def test_whatever_is_declared_is_movement() -> None:
    assert a_running_job().wait(100.0).declares("note").wait(100.0).is_silent


def test_pauses_the_job_came_back_from_are_learned() -> None:
    story = a_running_job().wait(115.0).healthy(50).wait(330.0)
    assert story.is_silent

    assert story.wait(40.0).only("job_stalled")


def test_silence_is_left_to_rank_silent() -> None:
    story = a_running_job().falls_silent(1).wait(3600.0)

    assert story.only("rank_silent")


def test_a_rank_that_never_showed_up_is_left_to_rank_silent() -> None:
    story = scenario(ranks=4, joined=[0, 2]).wait(7200.0)

    assert story.only("rank_silent")


def test_after_a_good_bye_nothing_more_is_expected() -> None:
    assert a_running_job().leaves(1).wait(3600.0).is_silent


def test_the_daemons_own_sleep_is_no_stall() -> None:
    assert a_running_job().daemon_sleeps(3600.0).wait(60.0).is_silent


def test_a_long_run_of_irregular_steps_is_silent() -> None:
    story = a_running_job(2)
    for _ in range(400):
        story.wait(float(story.random.exponential(10.0))).healthy(1)

    assert story.is_silent


# Who is waited for, by phase


@pytest.mark.parametrize(
    ("phases", "named"),
    [
        (("backward", "data", "backward", "backward"), (1,)),
        (("backward", "backward", "other", "backward"), (2,)),
        (("other", "data", "other", "other"), (1,)),
        (("backward", "backward", "backward", "backward"), ()),
        (("data", "data", "data", "backward"), ()),
        (("other", "other", "other", "backward"), ()),
        (("backward", "data", "backward", ""), ()),
    ],
)
def test_the_rank_the_others_wait_for_is_told_by_the_phase_it_is_in(
    phases: tuple[str, ...], named: tuple[int, ...]
) -> None:
    story = scenario(4).healthy(60)
    for rank, phase in enumerate(phases):
        story.beats(rank, phase=phase)

    finding = story.wait(125.0).only("job_stalled").first
    assert finding.ranks == named
    assert finding.phase == (phases[named[0]] if named else "")
