"""Waiting for an import beside other tools that wait for it too."""

import importlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from caboose.attachment import imports

NAME = "module_that_two_tools_wait_for"


class OtherTool(importlib.abc.MetaPathFinder):
    """An import hook that puts back the loader as the class has it, whoever else has changed it."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self._is_searching = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != NAME or self._is_searching:
            return None
        self._is_searching = True
        spec = importlib.util.find_spec(name)
        self._is_searching = False
        assert spec is not None
        loader: Any = spec.loader
        original = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            loader.__dict__.pop("exec_module", None)
            original(module)
            self.seen.append(module.__name__)

        loader.exec_module = exec_module
        return spec


@pytest.fixture
def importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / f"{NAME}.py").write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield
    sys.modules.pop(NAME, None)


@pytest.mark.parametrize("is_first", [False, True])
def test_another_tool_that_waits_for_the_same_module_does_not_break_its_import(
    is_first: bool, importable: None
) -> None:
    other = OtherTool()
    ours: list[ModuleType] = []
    if is_first:
        sys.meta_path.insert(0, other)
    imports.when_imported(NAME, ours.append)
    if not is_first:
        sys.meta_path.insert(0, other)

    module = importlib.import_module(NAME)

    assert module.VALUE == 1
    assert (ours, other.seen) == ([module], [NAME])
    assert "exec_module" not in vars(module.__loader__)
