"""What `pip install 'caboose[daemon]'` brings: nothing that is installed over the files of another package."""

import tomllib
from collections import defaultdict
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from caboose_daemon.out.grafana.library import GrafanaError, load_library

ROOT = Path(__file__).parents[2]
OF_PEOPLE = ("urllib3", "requests", "torch", "numpy")
"""What a training environment has, besides."""


def required(extra: str) -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [*project["dependencies"], *project["optional-dependencies"][extra]]
    return [Requirement(line) for line in lines if not line.startswith("caboose[")]


def closure(requirements: list[Requirement]) -> dict[str, Distribution]:
    """The installed distributions that these requirements lead to, by name."""
    found: dict[str, Distribution] = {}
    waiting = [(requirement, frozenset(requirement.extras)) for requirement in requirements]
    while waiting:
        requirement, extras = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name in found:
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            continue
        for line in found[name].requires or ():
            needed = Requirement(line)
            environments: list[dict[str, str]] = [{"extra": extra} for extra in extras] or [{"extra": ""}]
            if needed.marker is None or any(needed.marker.evaluate(environment) for environment in environments):
                waiting.append((needed, frozenset(needed.extras)))
    return found


@pytest.mark.parametrize("extra", ["daemon", "mirror", "mlflow", "trackio", "mcp", "otel", "postgres"])
def test_an_extra_brings_no_package_that_is_installed_over_another(extra: str) -> None:
    found = closure([*required("daemon"), *required(extra), *map(Requirement, OF_PEOPLE)])
    owners = defaultdict(set)
    for name, package in found.items():
        for path in package.files or ():
            if path.suffix == ".py" and ".." not in path.parts and "-info" not in path.parts[0]:
                owners[str(path)].add(name)

    assert {"prometheus-client", "starlette", "uvicorn"} <= found.keys()
    assert not {"grafana-client", "niquests", "urllib3-future"} & found.keys()
    assert {path: names for path, names in owners.items() if len(names) > 1} == {}


def test_grafanas_extra_is_one_of_its_own() -> None:
    assert "grafana-client" in {requirement.name for requirement in required("grafana")}
    assert "grafana-client" not in {requirement.name for requirement in required("mirror")}


def test_without_the_library_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "grafana_client.api", None)

    with pytest.raises(GrafanaError, match=r"grafana_client\S* is missing: pip install 'caboose\[grafana\]'"):
        load_library()
