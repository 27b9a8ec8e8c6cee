"""Puts the layers' picture together from what each rank saw of it.

Design
------
A replicated layer is equal on every rank, so whichever rank looked at it serves; where several did, the largest
value is taken, so that a disagreement is not hidden. A sharded layer is whole only over all ranks: squares of norms
add up and are divided by how often each shard occurs; shares are averaged. Nothing is guessed: a layer nobody
looked at, or a shard whose rank is missing, is UNSEEN.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from caboose_wire import Layer, StepReport

Float64 = NDArray[np.float64]

MISSING = -1.0
"""A layer that had nothing to show, such as no gradient."""
UNSEEN = -2.0
"""A layer that nobody looked at in this step."""
NORMS = frozenset({"grad_norm", "weight_norm"})


def merge(
    name: str, reports: Mapping[int, StepReport], layers: Sequence[Layer], world: int, *, width: int = 1
) -> Float64:
    """One array over all layers (layers x width if it is wider), from the ranks' parts of it."""
    num = len(layers)
    is_sharded = np.fromiter((layer.placement == "sharded" for layer in layers), dtype=np.bool_, count=num)
    largest = np.full((num, width), UNSEEN)
    total = np.zeros((num, width))
    count = np.zeros((num, 1))
    for report in reports.values():
        values = report.arrays.get(name)
        if values is None:
            continue
        where = _where(report, name, len(values), num)
        if where is None or values.size != len(values) * width:
            continue  # of another layer table than the job's, which changed after the report was taken
        part = values.reshape(-1, width).astype(np.float64)
        has = ~(part[:, :1] == MISSING)
        with np.errstate(over="ignore", invalid="ignore"):
            total[where] += np.where(has, np.square(part) if name in NORMS else part, 0.0)
        count[where] += has
        largest[where] = np.maximum(largest[where], part)  # maximum passes NaN on, as it should
    if is_sharded.any():
        largest[is_sharded] = _sharded(
            total[is_sharded],
            count[is_sharded],
            np.array([[max(1, layer.replicas)] for layer in layers])[is_sharded],
            is_norm=name in NORMS,
            is_complete=_num_with(name, reports) >= world,
        )
    return largest[:, 0] if width == 1 else largest


def _sharded(total: Float64, count: Float64, replicas: Float64, *, is_norm: bool, is_complete: bool) -> Float64:
    if not is_complete:
        return np.full_like(total, UNSEEN)
    with np.errstate(invalid="ignore", divide="ignore"):
        whole = np.sqrt(total / replicas) if is_norm else total / np.maximum(count, 1)
    return np.where(count == 0, MISSING, whole)


def _num_with(name: str, reports: Mapping[int, StepReport]) -> int:
    return sum(name in report.arrays for report in reports.values())


def _where(report: StepReport, name: str, length: int, num_layers: int) -> slice | None:
    start, stride = report.slices.get(name, (0, 1))
    last = start + (length - 1) * stride
    return slice(start, last + 1, stride) if length and stride and last < num_layers else None


def global_norm(layer_norms: Float64, layers: Sequence[Layer]) -> float | None:
    """The norm over all layers; None unless every layer that can be understood was seen."""
    is_known = np.fromiter((layer.placement != "unknown" for layer in layers), dtype=np.bool_, count=len(layers))
    norms = layer_norms[is_known]
    seen = norms[norms != MISSING]
    if not len(seen) or (seen == UNSEEN).any():
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.sqrt(np.sum(np.square(seen))))
