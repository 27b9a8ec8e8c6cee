"""A table of scalars that were logged one by one: each with its step, its name and its value.

Design
------
Those of one step need not be neighbours, and a quantity may lag behind, so they are put in order of their steps between
one place where the loss itself goes back, which is where a resumed run begins, and the next.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from caboose_daemon.offline.replay.logs.cells import from_objects
from caboose_daemon.offline.replay.logs.names import candidates
from caboose_daemon.offline.replay.logs.table import Table

STEP_KEY = "step"


def table_of_scalars(shown: Path, steps: Sequence[int], tags: Sequence[str], values: Sequence[float]) -> Table:
    """The table; scalars in the order in which they were logged."""
    num, at = len(steps), np.array(steps, np.int64)
    losses = candidates("loss", dict.fromkeys(tags))
    attempt = np.zeros(num, np.int64)
    if losses:
        rows = np.array([row for row, tag in enumerate(tags) if tag == losses[0]])
        attempt[rows[1:]] = at[rows[1:]] < at[rows[:-1]]
    order = np.lexsort((np.arange(num), at, np.cumsum(attempt)))
    place = np.empty(num, np.int64)
    place[order] = np.arange(num)
    rows_of: dict[str, tuple[list[int], list[object]]] = {}
    for row, tag, value in zip(place.tolist(), tags, values, strict=True):
        found = rows_of.get(tag)
        if found is None:
            found = rows_of[tag] = ([], [])
        found[0].append(row)
        found[1].append(value)
    rows_of.pop(STEP_KEY, None)  # a scalar of that name is not the step itself
    columns = {tag: from_objects(*cells, num) for tag, cells in rows_of.items()}
    columns[STEP_KEY] = from_objects(range(num), at[order].tolist(), num)
    return Table(str(shown), num, columns, lambda row: f"step {at[order[row]]}")
