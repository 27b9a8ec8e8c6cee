"""Cells as they are written in a file, turned into numbers, gaps, or text that is neither."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from caboose_daemon.offline.replay.logs.names import VALIDATION

GAPS = frozenset({"", "none", "null", "n/a", "na", "-", "<na>"})
"""Texts of a cell that mean "nothing was logged". `nan` is not one: it is a number that was logged."""


@dataclass(slots=True)
class Cells:
    """A column as read: numbers, gaps, and the first cell that is neither."""

    values: NDArray[np.float64]
    is_logged: NDArray[np.bool_]
    text: tuple[int, str] | None = None
    """Row and content of the first cell that is not a number; such cells count as gaps."""


def from_texts(texts: Sequence[str]) -> Cells:
    """A column of a CSV file. Most are all numbers, or numbers and empty cells, and those are quick."""
    count = len(texts)
    try:
        return Cells(np.fromiter(map(float, texts), np.float64, count), np.ones(count, np.bool_))
    except ValueError:
        pass
    try:
        values = np.fromiter((float(text) if text else math.nan for text in texts), np.float64, count)
        return Cells(values, np.fromiter(map(bool, texts), np.bool_, count))
    except ValueError:
        return from_objects(range(count), texts, count)


def from_objects(rows: Sequence[int], objects: Sequence[object], num_rows: int) -> Cells:
    """A column of `num_rows` of which these rows hold something, as JSON gives it."""
    values = np.full(num_rows, math.nan)
    is_logged = np.zeros(num_rows, np.bool_)
    cells = Cells(values, is_logged)
    if {int, float}.issuperset(map(type, objects)):
        try:
            values[rows] = np.array(objects, np.float64)
            is_logged[rows] = True
            return cells
        except OverflowError:
            pass  # a whole number beyond any float; one by one below
    for row, found in zip(rows, objects, strict=True):
        number = _number(found)
        if number is not None:
            values[row] = number
            is_logged[row] = True
        elif not (isinstance(found, str) and found.strip().lower() in GAPS) and cells.text is None:
            cells.text = (row, found if isinstance(found, str) else str(found))
    return cells


def marked(rows: Sequence[int], objects: Sequence[object], num_rows: int) -> NDArray[np.bool_]:
    """The rows whose cell marks them as validation."""
    result = np.zeros(num_rows, np.bool_)
    result[rows] = [isinstance(found, str) and found.strip().lower() in VALIDATION for found in objects]
    return result


def joined(parts: Sequence[Cells]) -> Cells:
    """Parts of one column, one after the other."""
    if len(parts) == 1:
        return parts[0]
    start = 0
    text = None
    for part in parts:
        if part.text is not None:
            text = (start + part.text[0], part.text[1])
            break
        start += len(part.values)
    return Cells(np.concatenate([p.values for p in parts]), np.concatenate([p.is_logged for p in parts]), text)


def _number(found: object) -> float | None:
    if isinstance(found, bool) or not isinstance(found, int | float | str):
        return None
    try:
        return float(found)
    except OverflowError:
        return math.inf if isinstance(found, int) and found > 0 else -math.inf
    except ValueError:
        return None
