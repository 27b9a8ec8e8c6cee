"""The docs name everything people type or scrape, and no picture or link in the README is missing."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from caboose.settings import VARIABLES
from caboose_daemon.cli import caboose
from caboose_daemon.config import AlignmentConfig, DaemonConfig, JournalConfig
from caboose_daemon.rules import RULES

ROOT = Path(__file__).parents[2]


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_every_metric_is_in_the_daemons_page() -> None:
    golden = (ROOT / "tests" / "golden" / "metrics.txt").read_text()
    names = re.findall(r"^# TYPE (\w+) ", golden, flags=re.MULTILINE)
    assert names
    assert [name for name in names if f"`{name}`" not in page("docs/daemon.md")] == []


@pytest.mark.parametrize("section", [DaemonConfig, JournalConfig, AlignmentConfig])
def test_every_key_of_the_configuration_is_in_the_daemons_page(section: type) -> None:
    assert [field.name for field in fields(section) if field.name not in page("docs/daemon.md")] == []


def test_every_flag_of_the_daemon_is_in_its_page() -> None:
    options = [option for parameter in caboose.commands["daemon"].params for option in parameter.opts]
    assert options
    assert [option for option in options if option not in page("docs/daemon.md")] == []


def test_every_variable_of_the_agent_is_in_its_page() -> None:
    assert [name for name in VARIABLES if f"`{name}`" not in page("docs/agent.md")] == []


def test_every_rule_and_its_thresholds_are_in_the_rules_page() -> None:
    text = page("docs/rules.md")
    for rule in RULES:
        section = text.partition(f"## {rule.name}\n")[2].partition("\n## ")[0]
        own = {field.name for field in fields(rule.config_class)} - {"enabled", "severity"}
        assert [key for key in own if f"`{key}`" not in section] == []


def test_what_the_readme_points_at_is_there() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", page("README.md"))
    assert targets
    assert [target for target in targets if "://" not in target and not (ROOT / target).exists()] == []
