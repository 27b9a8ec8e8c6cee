"""A step that is saved again: whenever the process is killed, the old checkpoint is there or the new one, whole."""

import functools
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import caboose
from caboose.checkpoints import layout, manifest
from caboose.checkpoints.checkpointer import Checkpointer
from support.jobs.saved_again import NEW, OLD, STEP, a_run, save
from support.processes import clean_environment
from support.training import JOBS

NOBODY = "tcp://127.0.0.1:9"


@functools.cache
def launched() -> Path:
    """Where processes that were killed at each point left their checkpoints."""
    directory = Path(tempfile.mkdtemp(prefix="caboose-again-"))
    command = [sys.executable, str(JOBS / "saved_again.py"), str(directory)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, env=clean_environment())
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return directory


def points() -> list[str]:
    """Which change of a name each of them was killed before."""
    found: list[str] = json.loads((launched() / "points.json").read_text())
    return found


def load(path: Path | str | caboose.ResumePlan) -> tuple[int, float]:
    """The age of what is loaded, and a weight of it."""
    model, optimizer = a_run(0.0)
    loaded = caboose.load_checkpoint(path, model, optimizer)
    assert loaded is not None
    return loaded.model_step, next(model.parameters()).flatten()[0].item()


@pytest.mark.slow
def test_killed_at_any_point_the_step_is_there_whole_and_the_next_save_clears_up() -> None:
    assert len(points()) >= 4, points()
    seen = []
    for number, point in enumerate(points(), start=1):
        directory = launched() / str(number)
        plan = caboose.resume_plan(directory, endpoint=NOBODY, timeout=0.01)
        assert plan.step == STEP, point
        assert plan.checkpoint == str(directory / f"step-{STEP}"), "by the name that the ledger knows"
        age, weight = load(plan)
        assert (age, weight) in ((OLD, OLD), (NEW, NEW)), point
        seen.append(age)
        save(directory, 6, 6)
        assert sorted(path.name for path in directory.iterdir()) == ["step-2", "step-4", "step-6"], point
        assert manifest.read(directory / f"step-{STEP}").model_step == age
    assert seen == sorted(seen, reverse=True), "the old one until it is the new one"
    assert set(seen) == {OLD, NEW}
    assert load(launched() / str(len(points()) + 1) / f"step-{STEP}") == (NEW, NEW), "nobody killed the last"


def set_aside(directory: Path) -> Path:
    """As a process leaves it that is killed after the old one has lost its name, and before the new one has it."""
    save(directory, STEP, OLD)
    path = directory / f"step-{STEP}"
    path.rename(layout.replaced(path))
    return path


def test_what_was_set_aside_is_loaded_by_the_name_it_had(tmp_path: Path) -> None:
    assert load(set_aside(tmp_path)) == (OLD, OLD)


def test_what_was_set_aside_has_its_name_again_with_the_next_save(tmp_path: Path) -> None:
    path = set_aside(tmp_path)
    layout.set_mark(layout.replaced(path), "tainted")
    save(tmp_path, 6, 6)
    assert manifest.read(path).model_step == OLD
    assert layout.is_marked(path, "tainted")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["step-4", "step-6"]


def test_what_was_set_aside_is_gone_with_the_next_save_where_the_new_one_has_the_name(tmp_path: Path) -> None:
    path = set_aside(tmp_path)
    save(tmp_path / "other", STEP, NEW)
    (tmp_path / "other" / path.name).rename(path)
    save(tmp_path, 6, 6)
    assert manifest.read(path).model_step == NEW
    assert sorted(each.name for each in tmp_path.iterdir()) == ["other", "step-4", "step-6"]


def test_a_new_one_that_cannot_take_the_name_leaves_it_to_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, STEP, OLD)
    rename = Path.rename

    def full(path: Path, target: Path) -> Path:
        if path.name == f"step-{STEP}{layout.INCOMPLETE}":
            raise OSError(28, "No space left on device")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", full)
    model, optimizer = a_run(NEW)
    saved = Checkpointer(tmp_path, model, [optimizer]).save(STEP, NEW)
    assert saved.state == "failed"
    assert "No space left" in saved.error
    monkeypatch.undo()
    assert [each.name for each in tmp_path.iterdir()] == [f"step-{STEP}"]
    assert load(tmp_path / f"step-{STEP}") == (OLD, OLD)


def test_a_directory_that_cannot_be_changed_is_planned_from_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 2, 2)
    path = set_aside(tmp_path)

    def read_only(*_: Path) -> Path:
        raise PermissionError(30, "Read-only file system")

    monkeypatch.setattr(Path, "rename", read_only)
    plan = caboose.resume_plan(tmp_path, endpoint=NOBODY, timeout=0.01)
    assert plan.step == 2
    assert layout.replaced(path).is_dir()
