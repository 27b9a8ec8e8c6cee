"""monitor_blind: agents that are off, reports that are lost, and what was never visible."""

import functools
from typing import Any

import pytest

from caboose_daemon.rules.monitor_blind import MonitorBlindConfig
from support.scenario import Scenario
from support.scenario import scenario as of_all_rules
from support.summaries import lacks

scenario = functools.partial(of_all_rules, about="monitor_blind")

BLIND = {"activations": "the model is compiled"}


def a_job(ranks: int = 4, **settings: Any) -> Scenario:
    return scenario(ranks, **settings).healthy(60)


# Agents


def test_an_agent_that_turned_itself_off_is_a_warning_that_names_the_rank() -> None:
    story = a_job().beats(2, state="disabled").wait(3.0)

    episode = story.only("monitor_blind")
    assert (episode.severity, episode.first.ranks) == ("warning", (2,))
    assert episode.first.values["disabled_agents"] == 1
    assert lacks(episode.first.summary, "rank 2") == []


def test_several_are_named() -> None:
    story = a_job().beats(2, state="disabled").beats(0, state="disabled").wait(6.0)

    assert story.only("monitor_blind").last.ranks == (0, 2)


def test_it_never_pages() -> None:
    story = a_job()
    for rank in range(4):
        story.beats(rank, state="disabled")

    assert {e.severity for e in story.wait(100.0).of("monitor_blind")} == {"warning"}


def test_is_over_a_minute_after_every_agent_reports_again() -> None:
    story = a_job().beats(2, state="disabled").wait(3.0).beats(2).wait(55.0)
    assert story.only("monitor_blind").is_open

    assert story.wait(15.0).only("monitor_blind").last.state == "resolved"


def test_an_agent_that_left_is_not_off() -> None:
    assert a_job().leaves(0, 1, 2, 3).wait(100.0).is_silent


# Reports


def test_a_few_lost_reports_are_nothing_and_a_share_of_the_recent_ones_is_a_warning() -> None:
    story = a_job()
    story.skips(1, reports=9).healthy(20)
    assert story.is_silent

    story.skips(1, reports=20).healthy(20)
    episode = story.only("monitor_blind")
    assert episode.severity == "warning"
    assert episode.first.values["lost_reports"] >= 10


@pytest.mark.slow
@pytest.mark.long
def test_the_same_loss_spread_over_a_long_run_is_nothing() -> None:
    story = a_job(step_seconds=0.05)
    for _ in range(30):
        story.skips(1, reports=1).healthy(100)

    assert story.is_silent


def test_reports_that_agents_gave_up_count() -> None:
    story = a_job().beats(3, num_dropped=500).wait(5.0)

    assert "about 500 reports" in story.only("monitor_blind").first.summary


def test_a_loss_is_over_after_a_while() -> None:
    story = a_job().skips(1, reports=40).healthy(20)
    assert story.only("monitor_blind").is_open

    episode = story.healthy(600).only("monitor_blind")
    assert not episode.is_open
    assert story.healthy(300).only("monitor_blind").num_findings == episode.num_findings


def test_thresholds_can_be_configured() -> None:
    rules = {"monitor_blind": MonitorBlindConfig(lost_reports=100)}

    assert a_job(rules=rules).skips(1, reports=40).healthy(20).is_silent


# What was never visible


def test_what_cannot_be_seen_is_told_once_for_the_record() -> None:
    story = scenario(2, blind=BLIND).healthy(500).wait(30.0)

    episode = story.only("monitor_blind")
    assert (episode.severity, episode.num_findings) == ("info", 1)
    assert lacks(episode.first.summary, "activations", "the model is compiled") == []


def test_rules_that_abstain_are_named_with_it() -> None:
    story = of_all_rules(2, blind=BLIND, visible=("loss", "lr")).healthy(10)

    assert "rules that abstain: " in story.only("monitor_blind").first.summary
    assert "straggler" in story.only("monitor_blind").first.summary


def test_a_warning_is_told_apart_from_what_was_known_from_the_start() -> None:
    story = scenario(2, blind=BLIND).healthy(60).beats(1, state="disabled").wait(5.0)

    assert [(e.severity, e.is_open) for e in story.of("monitor_blind")] == [("info", False), ("warning", True)]


# Healthy


@pytest.mark.slow
@pytest.mark.long
def test_a_long_healthy_run_is_silent() -> None:
    assert scenario(2, about="monitor_blind", noise=0.1).healthy(5000).is_silent


def test_a_job_that_sees_everything_has_nothing_to_tell() -> None:
    assert scenario(2, blind={}).healthy(10).wait(60.0).is_silent
