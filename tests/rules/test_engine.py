"""The engine keeps rules apart: one that fails, is switched off or cannot see stops no other."""

import logging
from dataclasses import dataclass
from typing import ClassVar

import pytest

from caboose_daemon.config import Config
from caboose_daemon.engine import Engine
from caboose_daemon.rules import RULES
from caboose_daemon.rules.finding import Finding
from caboose_daemon.rules.loss_spike import LossSpikeConfig
from caboose_daemon.rules.rule import Rule, RuleConfig
from caboose_daemon.view import JobView
from support.recorder import Core
from support.scenario import scenario


@dataclass(frozen=True)
class BrokenConfig(RuleConfig):
    """Nothing of its own."""


class Broken(Rule[BrokenConfig]):
    """A rule with a bug in it."""

    name = "broken"
    config_class = BrokenConfig
    needs: ClassVar[frozenset[str]] = frozenset()

    def observe(self, view: JobView) -> Finding | None:
        raise ZeroDivisionError("a bug")

    def resume(self, finding: Finding) -> None:
        pass


@pytest.fixture
def core_with_broken_rule(monkeypatch: pytest.MonkeyPatch) -> Core:
    monkeypatch.setattr("caboose_daemon.engine.RULES", (Broken, *RULES))
    return Core(Config(rules={"broken": BrokenConfig(), **Config().rules}))


def test_a_rule_that_raises_stops_no_other_and_is_counted(core_with_broken_rule: Core) -> None:
    story = scenario(core=core_with_broken_rule).nan_loss(1, at=10)

    assert story.only("non_finite").first.step == 10
    stats = story.core.state.rule_stats
    assert (stats["broken"].failures, stats["broken"].runs) == (10, 10)
    assert (stats["non_finite"].failures, stats["non_finite"].runs) == (0, 10)


def test_a_rule_that_raises_is_logged_once(core_with_broken_rule: Core, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, logger="caboose.daemon"):
        scenario(core=core_with_broken_rule).healthy(20)

    (record,) = caplog.records
    assert record.getMessage() == "rule broken failed on job train"


def test_a_rule_that_is_switched_off_is_not_run() -> None:
    story = scenario(rules={"loss_spike": LossSpikeConfig(enabled=False)}).loss_spike(at=41, height=9.0, steps=9)

    assert story.is_silent
    assert "loss_spike" not in story.core.state.rule_stats


def test_rules_that_cannot_see_are_listed_with_what_they_miss() -> None:
    engine = Engine(Config().rules, {})

    missed = {rule.name: sorted(rule.needs - {"gradients"}) for rule in RULES if not rule.needs <= {"gradients"}}
    assert engine.abstaining(frozenset({"gradients"})) == missed
    assert missed["non_finite"] == ["loss"]
    assert engine.abstaining(frozenset().union(*(rule.needs for rule in RULES))) == {}


def test_the_time_each_rule_takes_is_counted() -> None:
    story = scenario().healthy(50)

    assert all(story.core.state.rule_stats[rule].seconds > 0 for rule in ("non_finite", "loss_spike", "rank_silent"))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rules_name_is_also_its_file_and_its_section(rule: type[Rule[RuleConfig]]) -> None:
    assert rule.__module__ == f"caboose_daemon.rules.{rule.name}"
    assert rule.__name__ == "".join(word.title() for word in rule.name.split("_"))
    assert rule.name in Config().rules
