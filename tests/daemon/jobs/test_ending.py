"""The verdict on a run that is over: how it ended, how it stood, and that it stays until a person has seen it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from caboose_daemon.incidents.incident import Acknowledgement
from caboose_daemon.jobs.ending import Ending
from caboose_daemon.out.api import json_shapes
from caboose_daemon.out.metrics.collector import StateCollector
from support.scenario import JournaledCore, Scenario, scenario


def ending(story: Scenario) -> Ending:
    found = story.job.ending
    assert found is not None
    return found


def exported(story: Scenario, name: str) -> dict[tuple[str, ...], float]:
    """The samples of one family, by the values of their labels after the job's."""
    families = {f.name: f for f in StateCollector(story.core.state, lambda: story.now).collect()}
    samples = families[name].samples if name in families else []
    return {tuple(value for key, value in s.labels.items() if key != "training_job"): s.value for s in samples}


def broken(ranks: int = 2) -> Scenario:
    """A run that trains on NaN since step 40."""
    return scenario(ranks=ranks).nan_loss(1, at=40, steps=10)


def test_a_running_job_has_no_ending() -> None:
    assert broken().job.ending is None


def test_a_run_that_ended_well_was_healthy() -> None:
    found = ending(scenario(ranks=2).healthy(30).leaves(0, 1).wait(2.0))

    assert (found.state, found.text, found.severity) == ("ended", "ended at step 30; was healthy", "ok")


def test_a_run_that_ended_in_nan_stays_red() -> None:
    story = broken().leaves(0, 1).wait(600.0)

    found = ending(story)
    assert (found.state, found.severity, story.job.health) == ("ended", "critical", "critical")
    assert found.text.startswith("ended at step 49; open: non_finite since step 40: loss is nan")
    assert json_shapes.job_row(story.job, story.now)["ending"]["text"] == found.text
    (incident,) = (json_shapes.incident(i) for i in story.job.incidents)
    assert (incident["state"], incident["is_open"]) == ("unresolved", False), "resolved is what recovered"


def test_a_cancelled_run_names_the_signal_and_what_was_open() -> None:
    found = ending(broken().leaves(0, 1, signal="SIGTERM").wait(2.0))

    assert found.text.startswith("cancelled at step 49 by SIGTERM; open: non_finite since step 40")
    assert found.severity == "critical"


def test_a_crashed_run_names_the_rank_its_host_its_process_and_its_error() -> None:
    story = scenario(ranks=4).healthy(30).leaves(1, error="ValueError: bad shard").wait(1.0)
    story.leaves(0, 2, 3, signal="SIGTERM").wait(2.0)

    found = ending(story)
    assert found.text == "crashed at step 30: rank 1 (node1, pid 101): ValueError: bad shard; was healthy"
    assert (found.severity, story.job.health) == ("critical", "critical")
    assert not story.job.incidents.open, "nothing is open in a run that is over"


def test_a_run_that_crashes_within_its_first_seconds_is_red() -> None:
    story = scenario(ranks=2).healthy(4).leaves(1, error="ValueError: bad shard").leaves(0, signal="SIGTERM").wait(2.0)

    assert (ending(story).severity, story.job.health) == ("critical", "critical")


def test_a_crashed_run_whose_other_ranks_hang_is_not_over_yet() -> None:
    story = scenario(ranks=4).healthy(30).leaves(1, error="ValueError: bad shard").wait(60.0)
    assert (story.job.state, story.job.ending) == ("crashed", None)
    assert [i.rule for i in story.job.incidents.open] == ["rank_silent"]

    story.falls_silent(0, 2, 3).wait(20.0)

    assert ending(story).state == "crashed"
    assert not story.job.incidents.open


def test_a_killed_rank_is_named_though_only_its_peers_could_say_anything() -> None:
    story = scenario(ranks=2).healthy(30).falls_silent(1)
    story.leaves(0, error="RuntimeError: Connection closed by peer").wait(90.0)

    assert "rank 1 (node1, pid 101) vanished after step 30" in ending(story).how


def test_a_lost_run_says_that_nobody_was_heard() -> None:
    story = scenario(ranks=2).healthy(30).falls_silent(0, 1).wait(3700.0)

    found = ending(story)
    assert (found.state, found.severity) == ("lost", "warning")
    assert found.text == "lost at step 30: no message from any rank since; killed, or not reachable; was healthy"


def test_an_acknowledged_verdict_is_no_longer_red_and_can_be_undone() -> None:
    story = broken().leaves(0, 1).wait(2.0)
    assert exported(story, "caboose_incident_unresolved") == {("non_finite", "critical"): 1.0}
    assert exported(story, "caboose_job_severity") == {(): 3.0}

    assert story.core.pipeline.acknowledge(story.job, 1, Acknowledgement(story.now, "ada", "known")) is not None
    assert (ending(story).severity, ending(story).worst, ending(story).is_acknowledged) == ("info", "critical", True)
    assert exported(story, "caboose_incident_unresolved") == {("non_finite", "critical"): 0.0}
    assert exported(story, "caboose_job_severity") == {(): 1.0}

    story.core.pipeline.acknowledge(story.job, 1, None)
    assert story.job.health == "critical"


def test_what_recovered_cannot_be_acknowledged_and_is_no_part_of_the_verdict() -> None:
    story = scenario(ranks=2).nan_loss(1, at=40, steps=3).healthy(60).leaves(0, 1).wait(2.0)

    assert ending(story).text == f"ended at step {story.step}; was healthy"
    assert story.core.pipeline.acknowledge(story.job, 1, Acknowledgement(story.now, "ada", "known")) is None


def test_what_was_acknowledged_before_the_end_stays_so() -> None:
    story = broken()
    story.core.pipeline.acknowledge(story.job, 1, Acknowledgement(story.now, "ada", "known"))

    assert ending(story.leaves(0, 1).wait(2.0)).severity == "info"


def test_the_alert_of_an_ended_run_is_exported_for_its_verdict_and_not_as_an_open_incident() -> None:
    story = broken().leaves(0, 1).wait(600.0)

    assert exported(story, "caboose_incident_open") == {}
    assert list(exported(story, "caboose_incident_unresolved")) == [("non_finite", "critical")]
    assert len(exported(story, "caboose_incident_text")) == 1, "its alert still fires, with its words"


def test_the_next_launch_ends_the_verdict() -> None:
    story = broken().leaves(0, 1).wait(60.0)
    again = scenario(2, core=story.core, launch="run-2", incarnation="incarnation-new", joined=(), now=story.now)
    again.joins(0, 1).healthy(30)

    assert (again.job.ending, again.job.health) == (None, "ok")
    assert exported(again, "caboose_incident_unresolved") == {}


def test_a_crash_that_repeats_after_a_restart_is_the_same_incident() -> None:
    story = broken().leaves(1, error="ValueError: nan").leaves(0, signal="SIGTERM").wait(5.0)
    again = scenario(2, core=story.core, launch="run-2", incarnation="incarnation-new", joined=(), now=story.now)
    again.joins(0, 1).nan_loss(1, at=45, steps=5)

    (nan,) = (i for i in again.job.incidents if i.rule == "non_finite")
    assert (nan.number, nan.is_open, nan.num_reopened) == (1, True, 1)


@pytest.fixture
def journaled(tmp_path: Path) -> Iterator[Callable[[], JournaledCore]]:
    made: list[JournaledCore] = []

    def make() -> JournaledCore:
        made.append(JournaledCore(tmp_path / "journal.sqlite"))
        return made[-1]

    yield make
    for core in made:
        core.close()


def test_the_verdict_and_its_acknowledgement_survive_a_restart(journaled: Callable[[], JournaledCore]) -> None:
    story = scenario(ranks=2, core=journaled()).nan_loss(1, at=40, steps=10).leaves(0, 1).wait(5.0)
    before = ending(story)

    story.daemon_restarts().wait(3.0)
    assert ending(story) == before

    story.core.pipeline.acknowledge(story.job, 1, Acknowledgement(story.now, "ada", "known"))
    story.wait(1.0).daemon_restarts().wait(3.0)
    assert ending(story).severity == "info"


def a_killed_rank(story: Scenario) -> Scenario:
    return story.healthy(30).falls_silent(1).leaves(0, error="RuntimeError: Connection closed by peer").wait(90.0)


def a_silence(story: Scenario) -> Scenario:
    return story.nan_loss(1, at=40, steps=10).falls_silent(0, 1).wait(3700.0)


@pytest.mark.parametrize("told", [a_killed_rank, a_silence])
def test_a_verdict_on_ranks_that_vanished_is_there_as_soon_as_the_daemon_is_back(
    journaled: Callable[[], JournaledCore], told: Callable[[Scenario], Scenario]
) -> None:
    """Nobody says a second time that they are gone; until one of them is heard, the run stays over."""
    story = told(scenario(ranks=2, core=journaled()))
    before, health = ending(story), story.job.health

    story.daemon_restarts()
    assert (story.job.health, ending(story).text) == (health, before.text)
    for seconds in (3.0, 60.0, 120.0):
        assert (story.wait(seconds).job.health, ending(story).text) == (health, before.text)


def test_a_rank_that_comes_back_to_a_restarted_daemon_ends_the_verdict(journaled: Callable[[], JournaledCore]) -> None:
    story = a_silence(scenario(ranks=2, core=journaled())).daemon_restarts().wait(3.0)
    assert story.job.state == "lost"

    story.joins(0, 1).wait(3.0)

    assert (story.job.state, story.job.ending) == ("running", None)


def test_a_crashed_run_is_over_only_when_its_ranks_had_time_to_come_back_to_a_restarted_daemon(
    journaled: Callable[[], JournaledCore],
) -> None:
    story = scenario(ranks=2, core=journaled()).healthy(30).leaves(1, error="ValueError: bad shard").wait(3.0)
    story.falls_silent(0).daemon_restarts().wait(20.0)
    assert story.job.ending is None

    assert ending(story.wait(90.0)).state == "crashed"
