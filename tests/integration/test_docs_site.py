"""The documentation site: it builds without a warning, has what is generated, and can be searched."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from caboose_daemon.version import __version__ as VERSION
from support.processes import clean_environment

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("material") is None, reason="mkdocs-material is not installed: make docs-site"),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    (out / "0.0.1").mkdir()
    (out / "0.0.1" / "index.html").write_text("an earlier version")
    command = [sys.executable, str(ROOT / "docs" / "build_site.py"), str(out)]
    environment = clean_environment(NO_MKDOCS_2_WARNING="1")
    ended = subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment)
    assert (ended.returncode, ended.stderr) == (0, "")
    return out


def test_earlier_versions_stay_and_the_front_leads_to_this_one(site: Path) -> None:
    assert json.loads((site / "versions.json").read_text()) == [VERSION, "0.0.1"]
    assert f"url={VERSION}/" in (site / "index.html").read_text()


def test_it_has_the_generated_pages_and_nothing_from_another_site(site: Path) -> None:
    reference = (site / VERSION / "configuration" / "index.html").read_text()
    assert "rules.expert_collapse" in reference
    assert "caboose_gradient_noise_ratio" in (site / VERSION / "metrics" / "index.html").read_text()
    assert (site / VERSION / "runbooks" / "CabooseExpertCollapse" / "index.html").is_file()
    assert "fonts.googleapis.com" not in reference


def test_it_can_be_searched(site: Path) -> None:
    index = json.loads((site / VERSION / "search" / "search_index.json").read_text())
    assert any(entry["location"].startswith("rules/#expert_collapse") for entry in index["docs"])
