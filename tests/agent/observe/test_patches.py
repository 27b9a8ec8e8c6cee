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


def test_a_replacement_that_was_taken_out_is_put_back_and_removed_in_any_order() -> None:
    owner = types.SimpleNamespace(function=lambda: 1)
    original = owner.function
    first, second = Patches(), Patches()
    first.put(owner, "function", around)
    second.put(owner, "function", around)

    second.take_out(owner, "function")
    assert owner.function() == (1,)
    first.undo()
    assert owner.function is original
    second.put(owner, "function", around)
    second.take_out(owner, "function")
    second.take_out(owner, "function")
    assert owner.function is original
    assert Patches._left == []


def test_a_replacement_that_someone_has_wrapped_is_not_taken_out() -> None:
    owner = types.SimpleNamespace(function=lambda: 1)
    original, patches = owner.function, Patches()
    patches.put(owner, "function", around)
    ours = owner.function
    owner.function = around(ours)

    patches.take_out(owner, "function")
    assert owner.function() == ((1,),)
    assert patches.has(owner, "function")
    owner.function = ours
    patches.undo()
    assert owner.function is original
