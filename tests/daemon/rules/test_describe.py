"""Every rule says of itself, in its own file, all that people are shown about it."""

import pytest

from caboose_daemon.rules import RULES, AnyRule
from caboose_daemon.rules.loss_spike import LossSpike
from caboose_daemon.rules.parts.describe import describe


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_says_what_it_sees_why_it_is_right_and_what_each_threshold_means(rule: type[AnyRule]) -> None:
    about = describe(rule)

    assert about.brief
    assert about.sees
    assert not about.sees.startswith(rule.name), "its docstring opens with `name: `"
    assert [text for _, text in about.sections if text]
    assert [threshold.key for threshold in about.thresholds if not threshold.doc] == []


def test_a_description_is_taken_from_the_rules_own_file() -> None:
    about = describe(LossSpike)

    assert about.sees.startswith("the loss ")
    assert [title for title, _ in about.sections][:1] == ["Design"]
    ratio = next(threshold for threshold in about.thresholds if threshold.key == "ratio")
    assert ratio.doc.startswith("Loss over its level")
    assert about.needs == ("loss",)
    assert about.runbook == "docs/rules.md#loss_spike"


def test_what_every_rule_has_is_told_apart_from_its_own() -> None:
    own = {threshold.key: threshold.is_own for threshold in describe(LossSpike).thresholds}

    assert (own["enabled"], own["severity"], own["ratio"]) == (False, False, True)
    assert list(own)[:2] == ["enabled", "severity"]
