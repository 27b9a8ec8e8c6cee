"""Calls functions once modules have been imported, without importing them.

Design
------
A finder in front of `sys.meta_path` waits for names such as "torch", lets the other finders find such a module, and
replaces `exec_module` on its loader. When the module has been executed, the loader is restored; the finder is removed
with the last name. Waiting for torch itself, not for `torch.optim`, means that everything in it is complete and that no
line of the script has run since. Every other import costs one look into a table.
"""

import importlib.abc
import logging
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

logger = logging.getLogger("caboose")

Action = Callable[[ModuleType], Any]


def when_imported(name: str, action: Action) -> None:
    """Calls `action` with the module after its import; at once if it is imported already."""
    if name in sys.modules:
        action(sys.modules[name])
        return
    _finder.actions.setdefault(name, []).append(action)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self) -> None:
        self.actions: dict[str, list[Action]] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.actions:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                self._watch(fullname, spec)
                return spec
        return None

    def _watch(self, name: str, spec: ModuleSpec) -> None:
        loader: Any = spec.loader
        try:
            original = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                if vars(loader).get("exec_module") is exec_module:
                    del loader.exec_module  # else another tool's hook has put its own there, or restored the loader
                original(module)
                actions = self.actions.pop(name, [])  # none: the import failed once, and this is another spec's
                if not self.actions and self in sys.meta_path:
                    sys.meta_path.remove(self)
                for action in actions:
                    action(module)

            loader.exec_module = exec_module
        except AttributeError as error:
            logger.warning("caboose: %s is imported in an unknown way, and not watched: %r", name, error)


_finder = _Finder()
