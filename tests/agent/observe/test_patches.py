"""Replacements are removed in whatever order their owners stop."""

import types
from collections.abc import Callable
from typing import Any

import pytest

from caboose.observe.patches import Patches


def around(original: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: (original(),)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0), (0, 2, 1), (2, 0, 1)])
def test_the_original_is_back_when_the_last_owner_has_stopped(order: tuple[int, ...]) -> None:
    owner = types.SimpleNamespace(function=lambda: 1)
    original = owner.function
    patches = [Patches() for _ in range(3)]
    for each in patches:
        each.put(owner, "function", around)
    assert owner.function() == (((1,),),)

    for number in order:
        patches[number].undo()
    assert owner.function is original
    assert Patches._left == []
