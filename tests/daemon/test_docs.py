"""The docs name everything people type or scrape, and no picture or link in the README is missing."""

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import click
import pytest

from caboose.settings.environment import VARIABLES
from caboose_daemon.assistant.tools import BUDGETS
from caboose_daemon.cli import command as named
from caboose_daemon.config import (
    AlignmentConfig,
    DaemonConfig,
    ExportConfig,
    FleetConfig,
    GrafanaConfig,
    JournalConfig,
    MetricsConfig,
    OtlpConfig,
    RollbackConfig,
    StoreConfig,
)
from caboose_daemon.rules import RULES
from support.processes import clean_environment

ROOT = Path(__file__).parents[2]


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_every_metric_is_in_its_page() -> None:
    golden = (ROOT / "tests" / "golden" / "metrics.txt").read_text()
    names = re.findall(r"^# TYPE (\w+) ", golden, flags=re.MULTILINE)
    assert names
    assert [name for name in names if f"`{name}`" not in page("docs/metrics.md")] == []


@pytest.mark.parametrize(
    "section", [DaemonConfig, JournalConfig, AlignmentConfig, MetricsConfig, FleetConfig, StoreConfig]
)
def test_every_key_of_the_configuration_is_in_the_daemons_page(section: type) -> None:
    assert [field.name for field in fields(section) if field.name not in page("docs/daemon.md")] == []


@pytest.mark.parametrize(
    ("section", "name"),
    [
        (GrafanaConfig, "docs/grafana.md"),
        (ExportConfig, "docs/mirrors.md"),
        (OtlpConfig, "docs/opentelemetry.md"),
        (RollbackConfig, "docs/rollback.md"),
    ],
)
def test_every_key_of_a_section_of_its_own_is_in_its_page(section: type, name: str) -> None:
    assert [field.name for field in fields(section) if field.name not in page(name)] == []


def test_every_flag_of_the_push_is_in_its_page() -> None:
    group = named("grafana")
    assert isinstance(group, click.Group)
    options = [option for parameter in group.commands["push"].params for option in parameter.opts]
    assert options
    assert [option for option in options if f"`{option}" not in page("docs/grafana.md")] == []


@pytest.mark.parametrize("command", ["rollback", "apply", "checkpoint", "snapshot", "hunt"])
def test_every_flag_of_what_asks_a_run_is_in_its_page(command: str) -> None:
    options = [p.opts[0] for p in named(command).params if isinstance(p, click.Option)]
    text = page("docs/rollback.md")
    assert f"caboose {command}" in text
    assert [option for option in options if f"`{option}" not in text] == []


def test_every_flag_of_the_daemon_is_in_its_page() -> None:
    options = [option for parameter in named("daemon").params for option in parameter.opts]
    assert options
    assert [option for option in options if option not in page("docs/daemon.md")] == []


def test_every_flag_of_a_relay_is_in_its_page() -> None:
    options = [option for parameter in named("relay").params for option in parameter.opts]
    assert options
    assert [option for option in options if option not in page("docs/scale.md")] == []


def test_every_flag_tool_and_prompt_for_assistants_is_in_its_page() -> None:
    options = [p.opts[0] for p in named("mcp").params if isinstance(p, click.Option)]
    text = page("docs/assistant.md")
    prompts = ("why_is_my_run_sick", "is_this_plateau_normal", "compare_these_runs")
    assert [name for name in (*options, *BUDGETS, *prompts) if f"`{name}" not in text] == []
    assert [name for name, most in BUDGETS.items() if f"| `{name}` | {most:,} |" not in text] == []


def test_every_variable_of_the_agent_is_in_its_page() -> None:
    assert [name for name in VARIABLES if f"`{name}`" not in page("docs/agent.md")] == []


def test_every_rule_and_its_thresholds_are_in_the_rules_page() -> None:
    text = page("docs/rules.md")
    for rule in RULES:
        section = text.partition(f"## {rule.name}\n")[2].partition("\n## ")[0]
        own = {field.name for field in fields(rule.config_class)} - {"enabled", "severity"}
        assert [key for key in own if f"`{key}`" not in section] == []


def test_the_flags_of_the_rules_command_are_in_the_daemons_page() -> None:
    options = [option for parameter in named("rules").params for option in parameter.opts]
    assert options
    assert [option for option in options if f"`{option}" not in page("docs/daemon.md")] == []


# The generated tables


def generate(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(ROOT / "docs" / "generate.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=clean_environment())


def test_the_tables_of_thresholds_are_what_the_rules_say() -> None:
    ended = generate("--check")

    assert ended.returncode == 0, f"{ended.stderr}run: make docs"


def test_a_table_that_is_not_current_is_told_and_left_alone(tmp_path: Path) -> None:
    copy = tmp_path / "rules.md"
    stale = page("docs/rules.md").replace("| `ratio` | 1.25 |", "| `ratio` | 9 |")
    copy.write_text(stale)

    ended = generate("--check", str(copy))

    assert ended.returncode == 1
    assert ended.stderr == f"{copy} is out of date; run: make docs\n"
    assert copy.read_text() == stale


BY_HAND = """# The rules

Prose at the top.

## loss_spike

Prose of the rule.

| key | default | meaning |
|---|---|---|
| `ratio` | 7 | by hand |

*What to do*: act.

## rank_silent

More prose.

*What to do*: look.

## something_else

| key | default | meaning |
|---|---|---|
| `kept` | 1 | as it is |
"""


def test_tables_come_to_their_places_and_the_prose_stays(tmp_path: Path) -> None:
    copy = tmp_path / "rules.md"
    copy.write_text(BY_HAND)

    assert generate(str(copy)).returncode == 0
    text = copy.read_text()

    assert "| `ratio` | 1.25 | Loss over its level" in text
    assert "by hand" not in text
    assert text.index("More prose.") < text.index("| `warn_seconds` | 10 |") < text.index("*What to do*: look.")
    assert "| `kept` | 1 | as it is |" in text
    assert "## non_finite\n\nNaN or infinity" in text, "a rule without a section gets one"
    for line in BY_HAND.splitlines():
        assert "by hand" in line or line in text
    assert generate("--check", str(copy)).returncode == 0, "a second run changes nothing"


def test_what_the_readme_points_at_is_there() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", page("README.md"))
    assert targets
    assert [target for target in targets if "://" not in target and not (ROOT / target).exists()] == []
