"""The layers over time as a matrix for the page: depth by samples, within the rows and columns that fit.

Design
------
A column is one sample or several neighbouring samples of one attempt. A row is one layer or module, or several
neighbouring ones. A cell that covers several values shows the most extreme one (the largest, or on request the
smallest). A value that is not finite goes first, so a spike in one layer of 2,000 is visible. All columns have the same
width, whatever the number of steps between two samples, because two attempts may cover the same steps.
"""

import math
from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from caboose_daemon.steps.samples.stats import STATS, Stat
from caboose_daemon.store.sample_history import SampleReader, StoredSample

Json = dict[str, Any]
Keep = Literal["largest", "smallest"]
Float64 = NDArray[np.float64]


def layer_map(
    reader: SampleReader,
    stat: Stat,
    *,
    points: int,
    rows: int,
    first: int,
    last: int,
    keep: Keep = "largest",
    has_names: bool = False,
) -> Json:
    """At most `rows` x `points` cells of one statistic; `has_names`: with all names of each row."""
    model = reader.model
    order = list(range(len(model.names("layer")))) if stat.of == "layer" else reader.execution_order()
    samples = reader.samples([stat.name], first, last)
    matrix = np.array([sample.columns[stat.name] for sample in samples]) if samples else np.empty((0, len(order)))
    if stat.of == "module":
        shown: NDArray[np.bool_] = np.any(~(matrix < 0), axis=0)  # most modules cannot die or saturate
        order = [row for row in order if shown[row]]
    lots = _columns_of(samples, points)
    num_left_out = max(0, len(lots) - points)
    lots = lots[num_left_out:]
    bounds = np.linspace(0, len(order), min(rows, len(order)) + 1).astype(np.intp)
    cells = _reduced(matrix[:, np.array(order, dtype=np.intp)], lots, bounds[:-1], keep)
    members = [order[start:end] for start, end in pairwise(bounds.tolist())]
    named = model.layers if stat.of == "layer" else model.modules
    return {
        "stat": stat.name,
        "of": stat.of,
        "keep": keep,
        "num_layers": len(model.layers),
        "num_modules": len(model.modules),
        "num_rows": len(order),
        "num_sampled": len(samples),
        "num_left_out": num_left_out,
        "num_bad": sum(isinstance(cell, str) for row in cells for cell in row),
        "rows": {
            "name": [named[lot[0]].name for lot in members],
            "last_name": [named[lot[-1]].name for lot in members],
            "kind": [named[lot[0]].kind for lot in members],
            "index": [lot[0] for lot in members],
            "num": [len(lot) for lot in members],
            **({"members": [[named[row].name for row in lot] for lot in members]} if has_names else {}),
        },
        "samples": {
            "attempt": [samples[lot[0]].attempt for lot in lots],
            "first_step": [samples[lot[0]].step for lot in lots],
            "step": [samples[lot[-1]].step for lot in lots],
            "time": [samples[lot[-1]].time for lot in lots],
            "num": [len(lot) for lot in lots],
        },
        "values": cells,
    }


def layer_history(reader: SampleReader, layer: int | None, module: int | None, first: int, last: int) -> Json:
    """Every sample of one layer and one module."""
    stats = [stat for stat in STATS.values() if (layer if stat.of == "layer" else module) is not None]
    samples = reader.samples([stat.name for stat in stats], first, last)
    places = {"layer": layer, "module": module}
    return {
        "samples": {
            "attempt": [sample.attempt for sample in samples],
            "step": [sample.step for sample in samples],
            "time": [sample.time for sample in samples],
        },
        "stats": {
            stat.name: [_cell(_at(sample.columns.get(stat.name), places[stat.of]), 6) for sample in samples]
            for stat in stats
        },
    }


def _columns_of(samples: Sequence[StoredSample], points: int) -> list[list[int]]:
    """Positions of each column's samples: as few as possible per column, never of two attempts."""
    attempts = [list(lot) for _, lot in groupby(range(len(samples)), lambda i: samples[i].attempt)]
    width = 1
    while True:
        lots = [lot[i : i + width] for lot in attempts for i in range(0, len(lot), width)]
        if len(lots) <= points or width >= len(samples):
            return lots
        width += 1


def _reduced(matrix: Float64, lots: list[list[int]], starts: NDArray[np.intp], keep: Keep) -> list[list[Any]]:
    """One cell per row and column; NaN wins over infinity, infinity over finite values."""
    if not lots or not len(starts):
        return [[] for _ in starts]
    begins = np.array([lot[0] for lot in lots]) - lots[0][0]
    matrix = matrix[lots[0][0] :]
    worst = np.inf if keep == "largest" else -np.inf
    is_shown = matrix >= 0
    is_shown |= ~np.isfinite(matrix)
    blank = np.where(is_shown, matrix, -worst)
    over = np.maximum if keep == "largest" else np.minimum  # both propagate NaN
    if keep == "smallest":
        blank = np.where(np.isposinf(matrix), worst, blank)  # infinity is always the worst
    with np.errstate(invalid="ignore"):
        reduced = over.reduceat(over.reduceat(blank, begins, axis=0), starts, axis=1).T
    is_any = np.logical_or.reduceat(np.logical_or.reduceat(is_shown, begins, axis=0), starts, axis=1).T
    if keep == "smallest":
        reduced = np.where(np.isneginf(reduced), np.inf, reduced)
    return [
        [_cell(value) if has else None for value, has in zip(values, any_, strict=True)]
        for values, any_ in zip(reduced.tolist(), is_any.tolist(), strict=True)
    ]


def _at(column: Float64 | None, row: int | None) -> float:
    return -1.0 if column is None or row is None or row >= len(column) else float(column[row])


def _cell(value: float, digits: int = 4) -> float | str | None:
    """A rounded number; its name if not finite, None if unknown."""
    if value < 0:
        return None
    if math.isfinite(value):
        return float(f"{value:.{digits}g}")
    return "NaN" if math.isnan(value) else "Infinity"
