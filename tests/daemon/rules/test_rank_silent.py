"""rank_silent: who is missed, after how long, and what only looks like silence."""

import functools

import pytest

from caboose_daemon.rules.rank_silent import RankSilentConfig
from support.ranks import a_hello
from support.scenario import Scenario
from support.scenario import scenario as of_all_rules
from support.summaries import lacks

scenario = functools.partial(of_all_rules, about="rank_silent")


def a_running_job(ranks: int = 4, **settings: object) -> Scenario:
    """Thirty steps of half a second: long enough for the first grace to be over."""
    return scenario(ranks, **settings).healthy(30)


# The threshold


def test_is_silent_up_to_ten_seconds_and_speaks_then() -> None:
    story = a_running_job().falls_silent(1).wait(9.0)
    assert story.is_silent

    episode = story.wait(1.5).only("rank_silent")
    assert (episode.first.ranks, episode.severity) == ((1,), "warning")
    assert lacks(episode.first.summary, "rank 1 (node1, pid 101)", "10 s", "last step 30") == []


def test_pages_after_thirty_seconds() -> None:
    story = a_running_job().falls_silent(1).wait(29.0)
    assert story.only("rank_silent").severity == "warning"

    assert story.wait(1.5).only("rank_silent").severity == "critical"


def test_both_thresholds_can_be_configured() -> None:
    rules = {"rank_silent": RankSilentConfig(warn_seconds=60.0, critical_seconds=120.0)}
    story = scenario(rules=rules).healthy(150).falls_silent(1).wait(59.0)
    assert story.is_silent
    assert story.wait(2.0).only("rank_silent").severity == "warning"

    assert story.wait(60.0).only("rank_silent").severity == "critical"


@pytest.mark.parametrize("ceiling", ["info", "warning"])
def test_is_never_more_urgent_than_configured(ceiling: str) -> None:
    rules = {"rank_silent": RankSilentConfig(severity=ceiling)}  # type: ignore[arg-type]  # a parametrised literal

    assert a_running_job(rules=rules).falls_silent(1).wait(300.0).only("rank_silent").severity == ceiling


def test_a_long_silence_is_one_episode() -> None:
    story = a_running_job().falls_silent(1).wait(3600.0)

    episode = story.only("rank_silent")
    assert episode.first.onset_step == episode.last.onset_step == 30
    assert episode.last.values["seconds"] == pytest.approx(3600.0, abs=1.0)


# Recovery


def test_ends_when_the_rank_is_heard_again() -> None:
    story = a_running_job().falls_silent(1).wait(40.0).speaks(1).wait(3.0)

    episode = story.only("rank_silent")
    assert not episode.is_open
    assert episode.last.state == "resolved"


def test_a_second_silence_is_a_second_episode() -> None:
    story = a_running_job().falls_silent(1).wait(20.0).speaks(1).wait(5.0).healthy(10)
    story.falls_silent(2).wait(20.0)

    assert [(e.first.ranks, e.is_open) for e in story.of("rank_silent")] == [((1,), False), ((2,), True)]


def test_ends_with_the_job() -> None:
    story = a_running_job().falls_silent(1).wait(20.0).leaves(0, 1, 2, 3).wait(5.0)

    assert story.only("rank_silent").last.state == "resolved"


# Who is named


def test_the_one_silent_for_longest_is_named_first() -> None:
    story = a_running_job().falls_silent(2).wait(2.0).falls_silent(0).wait(20.0)

    last = story.only("rank_silent").last
    assert last.ranks == (2, 0)
    assert lacks(last.summary, "rank 2 (node2, pid 102) and 1 more rank:") == []


def test_when_nobody_speaks_it_says_so() -> None:
    story = a_running_job().falls_silent(0, 1, 2, 3).wait(35.0)

    last = story.only("rank_silent").last
    assert lacks(last.summary, "all 4 ranks", "for 3") == []
    assert (last.ranks, last.severity) == ((0, 1, 2, 3), "warning"), "a job that is gone as a whole is no page"


def test_the_rank_that_vanished_is_named_and_not_those_that_the_launcher_terminated_then() -> None:
    story = a_running_job().falls_silent(2).wait(1.0).leaves(0, 1, 3, signal="SIGTERM").wait(11.0)

    last = story.only("rank_silent").last
    assert (last.ranks, last.severity) == ((2,), "critical")
    assert last.values["terminated_ranks"] == 3


def test_the_rank_that_failed_is_named_and_not_those_that_the_launcher_terminated_then() -> None:
    story = a_running_job().leaves(2, error="ValueError: bad shard").wait(1.0)
    story.leaves(0, 1, 3, signal="SIGTERM").wait(11.0)

    last = story.only("rank_silent").last
    assert (last.ranks, last.severity) == ((2,), "critical")


def test_the_rank_that_left_before_the_launcher_terminated_the_others_is_named() -> None:
    """Its status may have been a failure that its Bye does not have."""
    story = a_running_job().leaves(2).wait(1.0).leaves(0, 1, 3, signal="SIGTERM").wait(11.0)

    last = story.only("rank_silent").last
    assert (last.ranks, last.severity) == ((2,), "warning")
    assert last.values["terminated_ranks"] == 3


LOST = "RuntimeError: [gloo] Connection closed by peer [127.0.0.1]:4711"


def test_ranks_that_lose_a_terminated_peer_were_cancelled_too() -> None:
    """The signal reaches the second host a moment later."""
    story = a_running_job().leaves(0, 1, signal="SIGTERM").wait(0.2).leaves(2, 3, error=LOST).wait(60.0)

    assert story.is_silent
    assert story.job.state == "cancelled"


def test_a_rank_that_lost_its_connection_before_the_others_were_terminated_is_named() -> None:
    story = a_running_job().leaves(2, error=LOST).wait(0.2).leaves(0, 1, 3, signal="SIGTERM").wait(60.0)

    assert story.only("rank_silent").last.ranks == (2,)
    assert story.job.state == "crashed"


def test_a_cancelled_job_is_silent() -> None:
    assert a_running_job().leaves(0, 1, 2, 3, signal="SIGTERM").wait(60.0).is_silent


# What only looks like silence


def test_a_rank_that_trains_slowly_but_sends_heartbeats_is_not_silent() -> None:
    assert a_running_job().wait(3600.0).is_silent


def test_a_rank_that_said_goodbye_is_not_missed() -> None:
    assert a_running_job().leaves(1).wait(600.0).is_silent


def test_a_job_that_ended_is_not_missed() -> None:
    assert a_running_job().leaves(0, 1, 2, 3).wait(600.0).is_silent


def test_the_daemons_own_sleep_is_nobodys_silence() -> None:
    story = a_running_job().daemon_sleeps(3600.0).wait(60.0)

    assert story.is_silent


def test_after_the_daemons_own_sleep_a_silent_rank_is_found_once_it_had_its_time() -> None:
    story = a_running_job().falls_silent(1).daemon_sleeps(3600.0).wait(9.0)
    assert story.is_silent

    assert story.wait(2.0).only("rank_silent").last.ranks == (1,)


def test_a_long_run_with_irregular_heartbeats_stays_silent() -> None:
    story = a_running_job(ranks=2)
    for _ in range(1500):
        for _ in range(int(story.random.integers(0, 9))):
            story.now += 1.0
            story.core.pass_time(story.now)
        story.healthy(1)

    assert story.is_silent


# Start and end


def test_a_rank_may_take_five_minutes_to_show_up() -> None:
    story = scenario(ranks=4, joined=[0, 2]).wait(299.0)
    assert story.is_silent

    first = story.wait(2.0).only("rank_silent").first
    assert (first.ranks, first.severity) == ((1, 3), "critical")
    assert lacks(first.summary, "rank 1 and 1 more rank of 4", "300 s") == []


def test_showing_up_late_ends_it() -> None:
    story = scenario(ranks=2, joined=[0]).wait(310.0).joins(1).wait(2.0)

    assert story.only("rank_silent").last.state == "resolved"


def test_showing_up_in_time_is_fine() -> None:
    assert scenario(ranks=2, joined=[0]).wait(290.0).joins(1).wait(100.0).is_silent


def test_nobody_is_expected_any_more_once_everyone_present_has_left() -> None:
    assert scenario(ranks=2, joined=[0]).wait(20.0).leaves(0).wait(600.0).is_silent


def test_leaving_with_an_error_is_critical_and_names_rank_and_error() -> None:
    story = a_running_job().leaves(2, error="RuntimeError: CUDA out of memory").wait(2.0)

    episode = story.only("rank_silent")
    assert (episode.first.ranks, episode.severity) == ((2,), "critical")
    assert lacks(episode.first.summary, "rank 2 (node2, pid 102)", "step 30", "RuntimeError: CUDA out of memory") == []


def test_a_failed_rank_is_named_before_those_that_fall_silent_after_it() -> None:
    story = a_running_job().leaves(2, error="RuntimeError: boom").falls_silent(0, 1, 3).wait(60.0)

    assert story.only("rank_silent").last.ranks == (2,)


def test_a_new_launch_ends_what_was_open_and_begins_anew() -> None:
    story = a_running_job().falls_silent(1).wait(40.0)
    for rank in range(4):
        story.core.receiver.unreachable(f"peer-{rank}".encode())
    for rank in range(4):
        hello = a_hello(rank=rank, world=4, attempt=1, incarnation=f"incarnation-b{rank}")
        story.core.say(f"new-{rank}".encode(), hello, story.now)

    (episode,) = story.of("rank_silent")
    assert not episode.is_open
    assert story.job.num_attempts == 2
    assert story.job.health == "ok"


# Witnesses

LOST = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:57023"


def test_ranks_that_lost_a_peer_are_not_blamed_and_the_silent_one_is() -> None:
    story = a_running_job().falls_silent(1).leaves(0, 2, 3, error=LOST)
    assert story.wait(9.0).is_silent, "who is gone does not show yet"

    episode = story.wait(2.0).only("rank_silent")
    assert (episode.first.ranks, episode.severity) == ((1,), "critical")
    assert lacks(episode.first.summary, "rank 0 and 2 more ranks") == []
    assert episode.first.values["ranks_that_lost_a_peer"] == 3.0


def test_an_error_of_its_own_is_named_at_once_before_those_that_follow_from_it() -> None:
    story = a_running_job().leaves(0, 1, error=LOST).leaves(2, error="ValueError: no such sample").wait(2.0)

    episode = story.only("rank_silent")
    assert episode.first.ranks == (2,)
    assert episode.first.values["ranks_that_lost_a_peer"] == 2.0
    assert (
        lacks(episode.first.summary, "rank 2 (node2, pid 102)", "ValueError: no such sample", "rank 0 and 1 more rank")
        == []
    )


def test_where_all_lost_each_other_the_first_of_them_is_told() -> None:
    episode = a_running_job().leaves(0, 1, 2, 3, error=LOST).wait(2.0).only("rank_silent")

    assert episode.first.ranks == (0, 1, 2, 3)
