"""Every code block of the README and the docs: Python compiles, data is valid, and commands and their flags exist.

Python blocks run in `tests/integration/test_documented_blocks.py`, the cookbook's in `test_cookbook.py`, the example
scripts in `test_examples.py`.
"""

import ast
import json
import re
import shlex
import textwrap
import tomllib
from pathlib import Path

import click
import pytest
import yaml

from caboose_daemon.cli import command as named
from caboose_daemon.config import SECTIONS, load

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^(?: {4,}|\s*\$ )(?:\w+=\S+ )*(caboose(?:-preflight)? \S.*)$", re.MULTILINE)
MAKE = re.compile(r"^(?: {4,}|\s*\$ )make ([a-z][a-z -]*)", re.MULTILINE)
OF_THE_AGENT = frozenset({"preflight", "inspect", "try"})
"""Commands that the agent's side parses."""


def blocks(kind: str) -> list[object]:
    found_blocks = []
    for page in PAGES:
        for found in FENCED.finditer(page.read_text(encoding="utf-8")):
            if found[2] == kind:
                line = page.read_text(encoding="utf-8").count("\n", 0, found.start()) + 1
                found_blocks.append(pytest.param(textwrap.dedent(found[3]), id=f"{page.relative_to(ROOT)}:{line}"))
    return found_blocks


@pytest.mark.parametrize("code", blocks("python"))
def test_python_compiles(code: str) -> None:
    ast.parse(code)


@pytest.mark.parametrize("text", blocks("toml"))
def test_toml_is_a_configuration_that_the_daemon_takes(text: str, tmp_path: Path) -> None:
    found = tomllib.loads(text)
    if set(found) <= {*SECTIONS, "rules"}:
        path = tmp_path / "caboose.toml"
        path.write_text(text)
        load(path)


@pytest.mark.parametrize("text", blocks("json"))
def test_json_is_valid(text: str) -> None:
    for document in re.split(r"\n(?=[{\[])", text.strip()):
        json.loads(re.sub(r",?\s*\.\.\.", "", document))


@pytest.mark.parametrize("text", blocks("yaml"))
def test_yaml_is_valid(text: str) -> None:
    assert list(yaml.safe_load_all(text))


def commands() -> list[object]:
    lines = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for found in COMMAND.finditer(text):
            line = text.count("\n", 0, found.start(1)) + 1
            lines.append(pytest.param(found[1], id=f"{page.relative_to(ROOT)}:{line}"))
    return lines


@pytest.mark.parametrize("line", commands())
def test_commands_and_their_flags_exist(line: str) -> None:
    words = shlex.split(re.split(r"\s[|>&]\s|;", line.rstrip("\\"))[0], comments=True)
    if words[0] != "caboose" or words[1] in OF_THE_AGENT or words[1].startswith("-"):
        return
    found = named(words[1])
    assert found is not None, f"no command {words[1]}"
    rest = words[2:]
    if isinstance(found, click.Group):
        for name in rest[0].split("|") if rest and not rest[0].startswith("-") else []:
            assert name in found.commands, f"no command {words[1]} {name}"
            group = found.commands[name]
        found, rest = (group, rest[1:]) if rest and not rest[0].startswith("-") else (found, rest)
    options = {option for parameter in found.params for option in parameter.opts + parameter.secondary_opts}
    used = {word.partition("=")[0].strip("[]") for word in rest if re.match(r"\[?-", word)}
    assert used - options - {"-h", "--help", "-"} == set()


def test_targets_of_make_exist() -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    used = {
        (page.name, word)
        for page in PAGES
        for found in MAKE.finditer(page.read_text(encoding="utf-8"))
        for word in re.split(r"  +|#", found[1])[0].split()
    }
    assert {(name, word) for name, word in used if word not in targets} == set()


def test_messages_of_the_troubleshooting_page_are_those_of_the_code() -> None:
    sources = [path for folder in ("agent", "daemon") for path in (ROOT / folder).rglob("*.py")]
    code = " ".join(re.sub(r"\"\s*\n\s*f?\"", "", path.read_text(encoding="utf-8")) for path in sources)
    code = re.sub(r"\{[^{}]*\}|%[\d.]*[sdrg]", "...", code)
    rows = re.findall(r"^\| (`.*?) \|", (ROOT / "docs" / "troubleshooting.md").read_text("utf-8"), re.MULTILINE)
    messages = [message for row in rows for message in re.findall(r"`([^`]+)`", row)]
    assert len(messages) > 15
    missing = [m for m in messages if any(part.strip() not in code for part in m.split("...") if len(part) > 3)]
    assert missing == []
