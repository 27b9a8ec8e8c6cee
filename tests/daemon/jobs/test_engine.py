"""The engine keeps rules apart: one that fails, is switched off or cannot see stops no other."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import pytest

from caboose_daemon.config import Config
from caboose_daemon.incidents.episodes import EpisodeLog
from caboose_daemon.jobs.engine import Engine
from caboose_daemon.rules import RULES
from caboose_daemon.rules.loss_spike import LossSpikeConfig
from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.rules.parts.rule import Rule, RuleConfig, Trigger
from caboose_daemon.steps.regimes import STARTUP_STEPS
from caboose_daemon.steps.view import JobView
from support.curves import flat, views
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
def core_with_broken_rule() -> Core:
    return Core(Config(rules={"broken": BrokenConfig(), **Config().rules}), rules=(Broken, *RULES))


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
    engine = Engine(RULES, Config().rules, {}, EpisodeLog())

    everything = frozenset(need for rule in RULES for need in rule.needs)
    assert engine.abstaining(everything) == {}
    without = engine.abstaining(everything - {"loss"})
    assert without == {rule.name: ["loss"] for rule in RULES if "loss" in rule.needs}
    assert {"non_finite", "loss_spike"} <= without.keys()


def test_the_time_each_rule_takes_is_counted() -> None:
    story = scenario().healthy(50)

    assert all(story.core.state.rule_stats[rule].seconds > 0 for rule in ("non_finite", "loss_spike", "rank_silent"))


# Regimes


@dataclass(frozen=True)
class CountingConfig(RuleConfig):
    """Nothing of its own but a threshold to change."""

    steps: int = 5


class Counting(Rule[CountingConfig]):
    """A rule that finds something at every step, and says how many it has seen since it was made."""

    name = "counting"
    config_class = CountingConfig
    muted_in = frozenset({"startup"})
    forgets_after = frozenset({"data_switch"})

    def __init__(self, config: CountingConfig) -> None:
        super().__init__(config)
        self.num_seen = 0
        self.onset: int | None = None

    def observe(self, view: JobView) -> Finding | None:
        assert view.step is not None
        self.num_seen += 1
        self.onset = view.step.step if self.onset is None else self.onset
        values = {"seen": float(self.num_seen), "steps": float(self.config.steps)}
        return Finding(
            rule=self.name,
            severity=Severity.WARNING,
            step=view.step.step,
            onset_step=self.onset,
            summary="a step",
            ranks=(3,),
            values=values,
        )

    def resume(self, finding: Finding) -> None:
        self.onset = finding.onset_step


class Watched(Engine):
    """An engine with one rule, whose findings go into its episodes, as in the pipeline."""

    def __init__(self, episodes: EpisodeLog) -> None:
        self.episodes = episodes
        super().__init__((Counting,), {"counting": CountingConfig()}, {}, episodes)

    def run(self, view: JobView, trigger: Trigger) -> list[Finding]:
        return self._kept(super().run(view, trigger))

    def configure(self, configs: Mapping[str, RuleConfig]) -> list[Finding]:
        return self._kept(super().configure(configs))

    def _kept(self, findings: list[Finding]) -> list[Finding]:
        for finding in findings:
            self.episodes.add(finding, 1, 0.0)
        return findings


@pytest.fixture
def counting() -> Watched:
    return Watched(EpisodeLog())


def run(engine: Engine, *, declared: dict[int, str] | None = None, steps: int = 40) -> list[Finding]:
    return [f for view in views(flat(steps), declared=declared) for f in engine.run(view, "step")]


def test_a_rule_is_not_asked_in_a_regime_that_mutes_it(counting: Engine) -> None:
    assert [finding.step for finding in run(counting)] == list(range(STARTUP_STEPS, 40))


def test_a_rule_begins_anew_and_ends_what_it_had_when_a_regime_it_forgets_after_begins(counting: Engine) -> None:
    found = run(counting, declared={30: "data_switch"})

    (ended,) = [finding for finding in found if finding.state == "resolved"]
    assert (ended.step, ended.onset_step, ended.ranks, ended.severity) == (30, 20, (3,), "info")
    assert ended.summary == "data switch: a new baseline begins"
    assert [finding.values["seen"] for finding in found if finding.step >= 30 and finding.state == "open"][:2] == [1, 2]
    assert found[-1].onset_step == 30


def test_a_regime_it_does_not_forget_after_changes_nothing(counting: Engine) -> None:
    found = run(counting, declared={30: "batch_ramp"})

    assert {finding.state for finding in found} == {"open"}
    assert found[-1].values["seen"] == 20


def test_what_was_not_open_is_not_ended(counting: Engine) -> None:
    assert [f.state for f in run(counting, declared={5: "data_switch"}, steps=10)] == []


# New thresholds


def test_new_thresholds_hold_from_the_next_step_on_and_what_was_learned_stays(counting: Engine) -> None:
    run(counting)

    assert counting.configure({"counting": CountingConfig(steps=9)}) == []

    last = run(counting)[-1]
    assert (last.values["steps"], last.values["seen"], last.onset_step) == (9, 40, 20)


def test_a_rule_that_is_switched_off_ends_what_it_had_open_and_is_new_when_switched_on_again(counting: Engine) -> None:
    run(counting)

    (ended,) = counting.configure({"counting": CountingConfig(enabled=False)})
    assert (ended.state, ended.step, ended.onset_step) == ("resolved", 39, 20)
    assert ended.summary == "the rule was switched off"
    assert run(counting) == []

    assert counting.configure({"counting": CountingConfig()}) == []
    assert run(counting)[0].values["seen"] == 1


def test_an_episode_taken_up_after_a_restart_ends_like_any_other(counting: Watched) -> None:
    (last,) = run(counting, steps=STARTUP_STEPS + 1)
    restarted = Watched(counting.episodes)
    restarted.resume()

    assert run(restarted)[0].onset_step == last.onset_step

    (ended,) = restarted.configure({"counting": CountingConfig(enabled=False)})
    assert ended.onset_step == last.onset_step


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rules_name_is_also_its_file_and_its_section(rule: type[Rule[RuleConfig]]) -> None:
    assert rule.__module__ == f"caboose_daemon.rules.{rule.name}"
    assert rule.__name__ == "".join(word.title() for word in rule.name.split("_"))
    assert rule.name in Config().rules
