"""The words of alerts: complete for the ten most frequent ones, made once, and bounded."""

import pytest

from caboose_daemon.config import Config
from caboose_daemon.incidents.incident import Incident
from caboose_daemon.jobs.alert_wording import MAX_DESCRIPTION, MAX_SUMMARY, impact
from caboose_daemon.rules import RULES
from caboose_wire import Batch
from support.alert_stories import DESCRIPTIONS, EVERY_DESCRIPTION, STORIES, SUMMARIES
from support.recorder import Core
from support.scenario import Scenario, scenario, watching
from support.summaries import lacks


def incident(story: Scenario, rule: str) -> Incident:
    found = [i for i in story.job.incidents if i.rule == rule]
    assert found, [i.rule for i in story.job.incidents]
    return found[0]


@pytest.mark.parametrize("rule", STORIES)
def test_the_ten_most_frequent_alerts_can_be_acted_on(rule: str) -> None:
    words = incident(STORIES[rule](Core(Config(rules=watching(rule, {}))), 1000.0), rule).alert

    assert words is not None
    assert lacks(words.summary, *SUMMARIES[rule]) == []
    assert lacks(words.description, *EVERY_DESCRIPTION, *DESCRIPTIONS[rule]) == []
    assert "\n" not in words.summary


def test_a_batch_that_made_the_loss_nan_is_no_spike_that_passes() -> None:
    """The worst that the incident has decides on what it means, whichever rule leads it."""
    story = scenario(ranks=2, about="bad_batch non_finite").healthy(40)
    story.meanwhile(batch=lambda rank: Batch(41, 0, (8, 3), 5 if rank else 0, -1.0, 1.0)).nan_loss(1, at=41)
    story.nan_loss(0, 1, at=42, steps=5)
    words = incident(story, "bad_batch").alert

    assert words is not None
    assert "usually costs a few steps" not in words.description
    assert impact("non_finite")[:60] in words.description


def test_the_words_stay_for_as_long_as_the_incident_lasts() -> None:
    story = scenario(ranks=2).nan_loss(1, at=40, steps=10)
    before = incident(story, "non_finite").alert
    assert before is not None
    assert before.severity == "critical"

    story.nan_loss(0, 1, at=story.step + 1, steps=300)

    assert incident(story, "non_finite").alert == before


def test_the_words_are_made_anew_when_it_gets_worse_and_not_when_it_gets_better() -> None:
    story = scenario(ranks=2).healthy(30).falls_silent(1).wait(20.0)
    first = incident(story, "rank_silent").alert
    assert first is not None
    assert (first.severity, "no heartbeat for 10 s" in first.summary) == ("warning", True)

    story.wait(20.0)
    worse = incident(story, "rank_silent").alert
    assert worse is not None
    assert (worse.severity, "no heartbeat for 30 s" in worse.summary) == ("critical", True)

    story.speaks(1).wait(30.0)
    assert incident(story, "rank_silent").alert == worse


def test_the_words_are_bounded_and_have_no_control_characters() -> None:
    name, error = "job-" + 100 * "x", "ValueError: \x1b[31m" + 150 * "long "
    story = scenario(ranks=2, job=name).healthy(30).leaves(1, error=error).wait(5.0)

    words = incident(story, "rank_silent").alert
    assert words is not None
    assert len(words.summary) <= MAX_SUMMARY
    assert len(words.description) <= MAX_DESCRIPTION
    assert "\x1b" not in words.summary + words.description


def test_every_rule_has_an_impact_in_its_runbook() -> None:
    assert [rule.name for rule in RULES if not impact(rule.name)] == []
