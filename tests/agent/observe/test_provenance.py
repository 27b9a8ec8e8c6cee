"""The seed and the commit of a run's code, from a real repository."""

import subprocess
from pathlib import Path

import pytest
import torch

from caboose.observe import provenance


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    done = subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A committed script in a folder of a repository."""
    path = tmp_path / "repository" / "src" / "train.py"
    path.parent.mkdir(parents=True)
    path.write_text("")
    git(path.parents[1], "init", "-q")
    git(path.parents[1], "add", "-A")
    git(path.parents[1], "commit", "-qm", "first")
    return path


def test_the_commit_is_that_of_the_scripts_repository(script: Path, tmp_path: Path) -> None:
    commit = git(script.parent, "rev-parse", "HEAD")[:12]
    assert provenance.code_version(str(script)) == commit
    git(script.parent, "pack-refs", "--all")
    assert provenance.code_version(str(script)) == commit
    git(script.parent, "worktree", "add", "-q", str(tmp_path / "other"))
    assert provenance.code_version(str(tmp_path / "other" / "src" / "train.py")) == commit
    git(script.parent, "checkout", "-q", "--detach")
    assert provenance.code_version(str(script)) == commit


@pytest.mark.parametrize("head", ["", "ref: refs/heads/none", "ref: ../../secret", "no commit", "\0" * 50])
def test_a_repository_without_a_readable_commit_has_no_version(script: Path, head: str) -> None:
    (script.parents[1] / ".git" / "HEAD").write_text(head)
    assert provenance.code_version(str(script)) == ""


def test_a_script_outside_of_a_repository_and_an_interactive_session_have_none(tmp_path: Path) -> None:
    assert provenance.code_version(None) == ""
    assert provenance.code_version(str(tmp_path / "nowhere.py")) in ("", provenance.code_version(str(tmp_path)))


def test_a_seed_counts_only_if_somebody_set_it() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(1234)
        assert provenance.gather()["seed"] == 1234
        torch.manual_seed(-1)
        assert provenance.gather()["seed"] == str(torch.initial_seed())
        torch.manual_seed(provenance.UNSET_SEED)
        assert "seed" not in provenance.gather()
