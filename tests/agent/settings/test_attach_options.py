"""The option groups of `attach`: each checks itself, and the old arguments name their new spelling."""

import inspect
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import caboose
from caboose.settings.options import REMOVED, as_checkpoints, as_rollback, as_sampling

WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "mode": (lambda: caboose.Rollback("always"), r"Rollback\('always'\): use one of 'off', 'advise', 'auto'"),
    "budget": (lambda: caboose.Rollback(budget=-1), r"Rollback\(budget=-1\): give a whole number of at least 0"),
    "cooldown": (lambda: caboose.Rollback(cooldown_steps=2.5), r"Rollback\(cooldown_steps=2.5\)"),
    "lr": (lambda: caboose.Rollback(lr="lower"), r"Rollback\(lr='lower'\): use 'keep' or 'rewind'"),
    "skip_step": (lambda: caboose.Rollback(skip_step="nan"), r"skip_step='nan'\): use 'nonfinite' or 'outlier'"),
    "snapshots": (lambda: caboose.Rollback(snapshots=50), r"Rollback\(snapshots=50\): give caboose.Snapshots"),
    "every": (lambda: caboose.Snapshots(every=0), r"Snapshots\(every=0\): give a whole number of at least 1"),
    "keep": (lambda: caboose.Snapshots(keep=0), r"Snapshots\(keep=0\)"),
    "memory": (lambda: caboose.Snapshots(max_host_gb=-1), r"Snapshots\(max_host_gb=-1\)"),
    "directory": (lambda: caboose.Checkpoints(3), r"Checkpoints\(3\): give a directory"),
    "no directory": (lambda: caboose.Checkpoints(""), r"Checkpoints\(''\): give a directory"),
    "checkpoints": (lambda: caboose.Checkpoints("here", keep=0), r"Checkpoints\(keep=0\)"),
    "samples": (lambda: caboose.Sampling(0), r"Sampling\(every=0\)"),
    "whole": (lambda: caboose.Sampling(True), r"Sampling\(every=True\)"),
    "compiled": (lambda: caboose.Sampling(compiled="yes"), r"Sampling\(compiled='yes'\)"),
    "overhead": (lambda: caboose.Sampling(overhead_budget=2), r"overhead_budget=2\): give a share of a step"),
    "text": (lambda: as_rollback("always"), r"attach\(rollback='always'\): use one of .*caboose.Rollback"),
    "none": (lambda: as_rollback(None), r"attach\(rollback=None\)"),
    "framework": (lambda: caboose.Rollback(lr="rewind").without_rewind(), r"lr='rewind'.*use lr='keep'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_value_names_itself_and_what_to_give_instead(name: str) -> None:
    make, message = WRONG[name]
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_the_short_forms_are_the_defaults() -> None:
    assert as_rollback("auto") == caboose.Rollback("auto")
    assert as_rollback("auto").snapshots == caboose.Snapshots(every=10, keep=3)
    assert as_checkpoints(Path("here")) == caboose.Checkpoints(Path("here"), keep=3)
    assert as_checkpoints(None) is None
    assert as_sampling(7) == caboose.Sampling(7)
    assert as_sampling(None) == caboose.Sampling()


@pytest.mark.parametrize("name", REMOVED)
def test_a_removed_argument_names_its_new_spelling(name: str) -> None:
    with pytest.raises(TypeError, match=rf"attach\({name}=\.\.\.\) is now written attach\("):
        caboose.attach(None, None, **{name: 1})  # type: ignore[arg-type]  # it is refused before anything is read


def test_a_new_spelling_can_be_given_as_it_is_written() -> None:
    parameters = inspect.signature(caboose.attach).parameters
    for name, spelling in REMOVED.items():
        given = eval(f"dict({spelling})", {"caboose": caboose, "directory": "here"})  # our own text
        assert set(given) <= set(parameters), name


def test_options_are_frozen() -> None:
    for option in (caboose.Rollback(), caboose.Snapshots(), caboose.Checkpoints("here"), caboose.Sampling()):
        with pytest.raises(AttributeError):
            setattr(option, fields(option)[0].name, 1)
