"""The version is in pyproject.toml and nowhere else; wire versions and metric names change only by the policy."""

import re
import subprocess
import tomllib
from importlib.metadata import version
from pathlib import Path

import caboose
from caboose_daemon.version import __version__ as daemon_version
from caboose_wire import VERSION

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def tracked(*patterns: str) -> list[Path]:
    found = subprocess.run(["git", "ls-files", *patterns], capture_output=True, text=True, cwd=ROOT, check=False)
    return [ROOT / name for name in found.stdout.splitlines()]


def test_agent_and_daemon_have_the_version_of_the_distribution() -> None:
    assert caboose.__version__ == daemon_version == version("caboose")


def test_no_other_file_states_the_version() -> None:
    sources = tracked("agent/**.py", "daemon/**.py", "deploy/*", "docs/*.md", "examples/*", "hatch_build.py")
    stated = [path for path in sources if PROJECT["version"] in path.read_text(encoding="utf-8", errors="replace")]

    assert stated == []


def test_the_upgrade_guide_has_the_wire_version_and_the_policy() -> None:
    text = (ROOT / "docs" / "upgrading.md").read_text(encoding="utf-8")

    assert f"wire version is {VERSION}" in text
    assert re.search(r"## What may change, and how", text)
