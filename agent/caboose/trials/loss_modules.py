"""The modules that a loss function uses beside the model.

Design
------
A loss may be a module with buffers and weights (a centre loss, a learned temperature), a method of one, or a function
that calls one: from a closure, from its module's globals, or bound by `functools.partial`. A trial runs all of these
and must restore them. They are found by the names in a function, through the functions that it calls, a few levels
deep; nothing is called for it.
"""

import functools
from collections.abc import Iterator
from types import FunctionType, MethodType
from typing import Any

import torch

MAX_DEPTH = 4
WRAPPERS = ("DistributedDataParallel", "OptimizedModule", "FullyShardedDataParallel")
"""Wrappers of the model: a trial does not touch their own state."""


def modules_of_loss(loss_fn: Any, model: torch.nn.Module) -> list[torch.nn.Module]:
    """Modules that a loss function can reach by name and that are not the model's."""
    found = {id(module): module for each in _reached(loss_fn, 0, set()) for module in each.modules()}
    for module in model.modules():
        found.pop(id(module), None)
    return [module for module in found.values() if type(module).__name__ not in WRAPPERS]


def _reached(thing: Any, depth: int, seen: set[int]) -> Iterator[torch.nn.Module]:
    if depth > MAX_DEPTH or id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, torch.nn.Module):
        yield thing
        return
    for part in _parts(thing, depth):
        yield from _reached(part, depth + 1, seen)


def _parts(thing: Any, depth: int) -> list[Any]:
    if isinstance(thing, functools.partial):
        return [thing.func, *thing.args, *thing.keywords.values()]
    if isinstance(thing, MethodType):
        return [thing.__self__, thing.__func__]
    if isinstance(thing, FunctionType):
        if (thing.__module__ or "").partition(".")[0] == "torch":
            return []
        cells = [cell.cell_contents for cell in thing.__closure__ or () if _is_filled(cell)]
        named = [thing.__globals__[name] for name in thing.__code__.co_names if name in thing.__globals__]
        return [*cells, *named, *(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values()]
    if isinstance(thing, list | tuple):
        return list(thing) if len(thing) <= 100 else []
    if isinstance(thing, dict):
        return list(thing.values()) if len(thing) <= 100 else []
    if depth == 0 and callable(thing) and hasattr(thing, "__dict__") and not isinstance(thing, type):
        return [*vars(thing).values(), type(thing).__call__]
    return []


def _is_filled(cell: Any) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:  # a name whose value is set later
        return False
    return True
