"""What is uploaded: wheel and sdist as twine and pip see them, each extra alone in an empty environment."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
FOR_DEVELOPERS = ("dev", "bench", "fuzz", "site")
EXTRAS = ["", *(name for name in PROJECT["optional-dependencies"] if name not in FOR_DEVELOPERS)]
IMPORTS = {
    "": ("caboose_wire",),
    "daemon": ("caboose_daemon.app.app",),
    "grafana": ("grafana_client", "caboose_daemon.app.app"),
    "mirror": ("tensorboardX", "wandb", "caboose_daemon.app.app"),
    "mlflow": ("caboose_daemon.out.export.mlflow_run", "caboose_daemon.app.app"),
    "trackio": ("caboose_daemon.out.export.trackio_run", "caboose_daemon.app.app"),
    "mcp": ("caboose_daemon.assistant.transport",),
    "otel": ("caboose_daemon.out.otlp.push", "caboose_daemon.out.otlp.exporters"),
    "postgres": ("psycopg", "caboose_daemon.out.postgres"),
    "plots": ("matplotlib", "plotly", "caboose_plots"),
    "demo": ("torch", "caboose", "caboose_drills"),
}
"""What must be importable with each extra."""
LOOK = """
import collections, importlib.metadata, json
owners = collections.defaultdict(set)
for package in importlib.metadata.distributions():
    for path in package.files or ():
        if path.suffix == ".py" and ".." not in path.parts and "-info" not in path.parts[0]:
            owners[str(path)].add(package.metadata["Name"].lower())
pairs = {tuple(sorted(names)) for names in owners.values() if len(names) > 1}
print(json.dumps(sorted(pairs)))
"""
pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.rest, pytest.mark.timeout(900)]


def run(*command: object, check: bool = True, **settings: Any) -> "subprocess.CompletedProcess[str]":
    words = [str(word) for word in command]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False, **settings)
    assert not check or ended.returncode == 0, f"{words}\n{ended.stdout}{ended.stderr}"
    return ended


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the wheel and the sdist of this tree."""
    directory = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", directory, ROOT)
    return directory


def test_twine_accepts_both_and_they_have_the_version_of_the_project(distributions: Path) -> None:
    files = sorted(distributions.iterdir())

    output = run(sys.executable, "-m", "twine", "check", "--strict", *files).stdout

    assert output.count("PASSED") == 2
    assert [path.name for path in files] == [
        f"caboose-{PROJECT['version']}-py3-none-any.whl",
        f"caboose-{PROJECT['version']}.tar.gz",
    ]


def test_a_wheel_made_of_the_sdist_has_the_same_files(distributions: Path, tmp_path: Path) -> None:
    (sdist,) = distributions.glob("*.tar.gz")
    (wheel,) = distributions.glob("*.whl")
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path, sdist)
    (again,) = tmp_path.glob("*.whl")

    assert contents(again) == contents(wheel)
    assert "caboose_daemon/assets/runbooks/CabooseLossSpike.md" in contents(wheel)


def contents(wheel: Path) -> set[str]:
    return set(run(sys.executable, "-m", "zipfile", "--list", wheel).stdout.split()[4:]) & set(
        re.findall(r"^(\S+)\s", run(sys.executable, "-m", "zipfile", "--list", wheel).stdout, flags=re.MULTILINE)
    )


@pytest.mark.parametrize("extra", EXTRAS, ids=lambda name: name or "base")
def test_each_extra_alone_installs_into_an_empty_environment(distributions: Path, tmp_path: Path, extra: str) -> None:
    (wheel,) = distributions.glob("*.whl")
    run(sys.executable, "-m", "venv", tmp_path / "env")
    python = tmp_path / "env" / "bin" / "python"
    target = f"caboose[{extra}] @ {wheel.as_uri()}" if extra else str(wheel)
    constraints = ROOT / "requirements" / "constraints.txt"

    run(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "-c", constraints, target)

    assert "No broken requirements found" in run(python, "-m", "pip", "check").stdout
    pairs = {tuple(pair) for pair in json.loads(run(python, "-c", LOOK, cwd=tmp_path).stdout)}
    assert pairs == set(), "packages that are installed over each other"
    for module in IMPORTS[extra]:
        run(python, "-c", f"import {module}", cwd=tmp_path)
    shown = run(tmp_path / "env" / "bin" / "caboose", "--version", check=False)
    if extra not in ("", "plots"):  # these have no command
        assert shown.stdout == f"caboose, version {PROJECT['version']}\n"
    else:
        assert (shown.returncode, "pip install 'caboose[daemon]'" in shown.stderr) == (2, True)


def test_every_extra_is_checked() -> None:
    assert set(EXTRAS) == IMPORTS.keys()
