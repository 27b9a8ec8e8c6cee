"""A daemon that was asked to end stays until what it saw has been scraped, and no longer."""

import signal
from pathlib import Path

import pytest

from caboose_daemon.app.shutdown import NOTICE_SECONDS, has_unscraped_incidents
from caboose_wire import Bye
from support.processes import running_daemon, wait_until
from support.ranks import simulated_ranks
from support.scenario import Scenario, scenario

STAY = 120.0


def has_more(story: Scenario, since: float, later: float = 0.0) -> bool:
    return has_unscraped_incidents([story.job], story.now + later, since, STAY)


def test_nothing_is_waited_for_where_there_is_no_job_or_it_ended_well() -> None:
    assert not has_unscraped_incidents([], 0.0, 0.0, STAY)
    story = scenario(ranks=2).healthy(5).leaves(0, 1).wait(2.0)
    assert not has_more(story, since=story.now)


def test_a_crash_is_told_for_as_long_as_an_incident_is_exported() -> None:
    story = scenario(ranks=1).healthy(5).wait(15.0).leaves(0, error="RuntimeError: out of memory").wait(2.0)
    (incident,) = story.job.incidents
    assert incident.critical_time is not None
    told = incident.critical_time + STAY - story.now

    assert has_more(story, since=story.now, later=told - 1)
    assert not has_more(story, since=story.now, later=told)


def test_ranks_that_were_killed_are_waited_for_until_the_rules_have_noticed() -> None:
    story = scenario(ranks=2).healthy(5).falls_silent(0, 1)
    since = story.now
    assert has_more(story, since, later=NOTICE_SECONDS - 1)

    story.wait(NOTICE_SECONDS)

    assert story.job.health == "warning"
    assert has_more(story, since)
    assert not has_more(story, since, later=STAY)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_it_serves_on_after_sigterm_and_a_second_signal_ends_it_at_once(tmp_path: Path, number: signal.Signals) -> None:
    with running_daemon(tmp_path, "--linger", "100") as daemon:
        with simulated_ranks(daemon.endpoint, 1, {"job": "crashed"}) as (rank,):
            rank.send(Bye(step=1, error="RuntimeError: boom"))
            assert wait_until(lambda: 'caboose_job_failed{training_job="crashed"} 1.0' in daemon.text("/metrics"), 10)
        daemon.process.send_signal(signal.SIGTERM)
        assert wait_until(lambda: "SIGTERM: staying" in daemon.log.read_text(), 10)
        series = 'caboose_incident_open{rule="rank_silent",severity="critical",training_job="crashed"} 1.0'
        assert wait_until(lambda: series in daemon.text("/metrics"), 20)

        assert daemon.stop(number) == 0


def test_with_nothing_to_tell_it_ends_at_once(tmp_path: Path) -> None:
    with running_daemon(tmp_path, env={"CABOOSE_LINGER": "100"}) as daemon:
        assert daemon.stop() == 0
