"""Every alert has a runbook of the same structure, and every command, query and link in it exists."""

import re
from pathlib import Path

import click
import promql_parser
import pytest

from caboose_daemon.cli import command as named
from caboose_daemon.out.metrics.table import ENTRIES
from caboose_daemon.rules import RULES
from support.alerts import DASHBOARDS, RUNBOOKS, rules, selectors

HEADINGS = ["Meaning", "Impact", "Diagnosis", "Mitigation", "What not to do", "False alarms"]
PAGES = sorted(RUNBOOKS.glob("*.md"))
OF_PROMETHEUS = {"up", "ALERTS", "scrape_samples_scraped"}
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def commands(page: Path) -> list[str]:
    """The lines of the code blocks, and the text between backticks."""
    return [*re.findall(r"^    (.+)$", text(page), flags=re.MULTILINE), *re.findall(r"`([^`\n]+)`", text(page))]


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    assert [page.stem for page in PAGES] == sorted({rule.name for rule in rules() if rule.is_alert})


@each_page
def test_a_runbook_has_its_six_sections_and_none_is_empty(page: Path) -> None:
    title, *parts = re.split(r"^#+ ", text(page), flags=re.MULTILINE)[1:]

    assert title.strip() == page.stem
    assert [part.partition("\n")[0] for part in parts] == HEADINGS
    assert all(len(part.partition("\n")[2].strip()) > 5 for part in parts)
    assert "\n    " in parts[2], "commands to run"
    assert "\n- Do not " in parts[4]


@each_page
def test_every_query_of_a_runbook_is_promql_about_metrics_that_exist(page: Path) -> None:
    block = text(page).partition("In Prometheus:\n\n")[2].partition("\n\n")[0]
    queries = [line.strip() for line in block.splitlines()]

    assert queries
    for query in queries:
        assert isinstance(promql_parser.parse(query), promql_parser.Expr)
        for selector in selectors(query):
            assert selector.name in ENTRIES.keys() | OF_PROMETHEUS
            if selector.name is not None and selector.name in ENTRIES:
                assert {m.name for m in selector.matchers.matchers} <= set(ENTRIES[selector.name].labels)


@each_page
def test_every_caboose_command_of_a_runbook_exists(page: Path) -> None:
    names = {rule.name for rule in RULES}
    for line in commands(page):
        words = line.split()
        if words[0] != "caboose":
            continue
        command = named(words[1])
        if len(words) > 2 and isinstance(command, click.Group):
            assert words[2] in command.commands
            assert words[1] != "rules" or words[3] in names


@each_page
def test_every_link_of_a_runbook_has_a_target(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#]+)#?([^)]*)\)", text(page)):
        linked = (page.parent / target).resolve()
        assert linked.is_relative_to(DASHBOARDS.parent)
        headings = re.findall(r"^#+ (.+)$", linked.read_text(encoding="utf-8"), flags=re.MULTILINE)
        assert not anchor or anchor in {heading.lower().replace(" ", "-") for heading in headings}
