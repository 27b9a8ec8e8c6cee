"""Calls a function once torch has been imported, without importing it.

Design
------
A finder in front of `sys.meta_path` waits for the name "torch", lets the other finders find it, and replaces
`exec_module` on that module's loader. When torch has been executed, the loader is restored and the finder removed.
Waiting for torch itself, not for `torch.optim`, means that everything in it is complete and that no line of the script
has run since. A program that never imports torch pays one string comparison per import.
"""

import importlib.abc
import logging
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

logger = logging.getLogger("caboose")


def when_imported(action: Callable[[], Any]) -> None:
    """Calls `action` after the import of torch; at once if it is imported already."""
    if "torch" in sys.modules:
        action()
    else:
        sys.meta_path.insert(0, _TorchFinder(action))


class _TorchFinder(importlib.abc.MetaPathFinder):
    def __init__(self, action: Callable[[], Any]) -> None:
        self._action = action

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "torch":
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                self._watch(spec)
                return spec
        return None

    def _watch(self, spec: ModuleSpec) -> None:
        loader: Any = spec.loader
        try:
            original = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                del loader.exec_module
                original(module)
                if self in sys.meta_path:  # not there if the import failed once and this is another spec's
                    sys.meta_path.remove(self)
                    self._action()

            loader.exec_module = exec_module
        except AttributeError as error:
            logger.warning("caboose: this run is not watched, torch is imported in an unknown way: %r", error)
