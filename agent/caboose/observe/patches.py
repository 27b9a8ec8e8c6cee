"""Replaces functions, and restores them."""

import functools
from collections.abc import Callable
from typing import Any, ClassVar


class Patches:
    """Replaced attributes of modules, classes and instances.

    A replacement that someone else has wrapped since cannot be removed: it stays, so every replacement must do nothing
    once its owner has stopped. If other patches of this class wrapped it, it goes with them.
    """

    _left: ClassVar[list[tuple[Any, Any]]] = []
    """Replacements that could not be removed, and their originals."""

    def __init__(self) -> None:
        self._put: list[tuple[Any, str, Any, Any]] = []

    def put(self, owner: Any, name: str, make: Callable[[Any], Callable[..., Any]]) -> None:
        """Replaces `owner.name` by what `make` builds around the original."""
        original, is_own = getattr(owner, name), name in vars(owner)
        replacement = functools.wraps(original)(make(original))
        setattr(owner, name, replacement)
        self._put.append((owner, name, original if is_own else None, replacement))

    def has(self, owner: Any, name: str) -> bool:
        """Whether that attribute was replaced here."""
        return any(entry[0] is owner and entry[1] == name for entry in self._put)

    def take_out(self, owner: Any, name: str) -> None:
        """Restores one original for a while, unless someone else has wrapped the replacement; then it stays."""
        for number, (its_owner, its_name, original, replacement) in enumerate(self._put):
            if its_owner is owner and its_name == name and getattr(owner, name) is replacement:
                del self._put[number]
                self._restore(owner, name, original)
                return

    def undo(self) -> None:
        """Restores every original, the last replaced first."""
        while self._put:
            owner, name, original, replacement = self._put.pop()
            if getattr(owner, name) is not replacement:
                self._left.append((replacement, original))
            else:
                self._restore(owner, name, original)

    def _restore(self, owner: Any, name: str, original: Any) -> None:
        while (left := next((pair for pair in self._left if pair[0] is original), None)) is not None:
            self._left.remove(left)
            original = left[1]
        if original is None:  # it is inherited, or a method of the instance's class
            delattr(owner, name)
        else:
            setattr(owner, name, original)
