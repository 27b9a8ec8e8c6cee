"""Finds the samples of a batch that make it bad, by running parts of it."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

MAX_RUNS = 24
MAX_FOUND = 4


def part_of(tree: Any, rows: range, num_samples: int) -> Any:
    """These samples of every tensor whose first dimension is the batch's; the rest unchanged."""
    if isinstance(tree, torch.Tensor):
        is_whole = tree.dim() > 0 and tree.shape[0] == num_samples
        return tree[rows.start : rows.stop] if is_whole else tree
    if isinstance(tree, Mapping):
        return {key: part_of(value, rows, num_samples) for key, value in tree.items()}
    if type(tree) in (tuple, list):
        return type(tree)([part_of(value, rows, num_samples) for value in tree])
    return tree


def search(is_bad: Callable[[range], bool | None], num_samples: int) -> tuple[int, ...]:
    """The bad samples, by halves; empty if parts cannot be run, or are bad only together.

    `is_bad` runs some samples and returns whether the result is bad; None ends the search (it failed, or time is up).
    """
    num_runs = 0
    found: list[int] = []
    open_parts = [range(num_samples)]
    while open_parts and len(found) < MAX_FOUND:
        part = open_parts.pop(0)
        if len(part) == 1:
            found.append(part.start)
            continue
        middle = part.start + len(part) // 2
        for half in (range(part.start, middle), range(middle, part.stop)):
            if num_runs >= MAX_RUNS:
                return tuple(sorted(found))
            num_runs += 1
            answer = is_bad(half)
            if answer is None:
                return tuple(sorted(found))
            if answer:
                open_parts.insert(0, half)
    return tuple(sorted(found))
