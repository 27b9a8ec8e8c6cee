"""Reduces the layers' numbers over the ranks.

Design
------
A replicated layer is equal on every rank, so the value of any rank that looked at it will do; of several the largest is
taken, so that a disagreement is not hidden. A sharded layer is complete only over all ranks: squares of norms add up
and are divided by how often each shard occurs; shares are averaged. Nothing is guessed: a layer that no rank looked at,
or a shard whose rank is missing, has no value.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from caboose_daemon.steps.masked import MISSING, UNSEEN, LayerValues
from caboose_wire import Layer, StepReport

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
Place = tuple[slice, list[Float32]]
"""Layers, and what each rank has for them."""
WHOLE = (0, 1)
"""Where an array begins and by which step it goes on, if its report has no slice for it."""

MANY_PLACES = 8
"""From so many groups of layers on, replicated numbers are reduced at once: a group costs 10 us, whatever is in it."""
SAME = 3e-4
"""Relative difference of two ranks' norms of the same gradient, by rounding. Those of different batches differ by the
square root of their number of independent elements: 1 % and less where a layer is large.
"""
NORMS = frozenset({"grad_norm", "weight_norm"})


def merge(
    name: str,
    reports: Mapping[int, StepReport],
    layers: Sequence[Layer],
    world: int,
    *,
    width: int = 1,
    places: Sequence[Place] | None = None,
) -> LayerValues:
    """One array over all layers (layers x width if it is wider), from the ranks' parts of it.

    `places`: what `by_place` finds, where that is known.
    """
    num = len(layers)
    is_sharded = np.fromiter((layer.placement == "sharded" for layer in layers), dtype=np.bool_, count=num)
    has_sharded = bool(is_sharded.any())
    largest = np.full((num, width), UNSEEN)
    if places is None:
        places = by_place(name, reports, num, width)
    if width == 1 and not has_sharded and len(places) >= MANY_PLACES:
        side_by_side = _SideBySide(places)
        with np.errstate(invalid="ignore"):
            np.maximum.at(largest[:, 0], side_by_side.layers, side_by_side.high)  # keeps NaN
        return LayerValues.from_wire(largest[:, 0])
    total = np.zeros((num, width))
    count = np.zeros((num, 1))
    for where, parts in places:
        rows = np.concatenate(parts).reshape(len(parts), -1)
        largest[where] = np.maximum(largest[where], rows.max(axis=0).reshape(-1, width))  # keeps NaN
        if has_sharded:
            is_missing = rows[:, ::width] == MISSING
            found = rows.astype(np.float64)
            if is_missing.any():
                found[np.repeat(is_missing, width, axis=1)] = 0.0
            with np.errstate(over="ignore", invalid="ignore"):
                whole = np.einsum("rl,rl->l", found, found) if name in NORMS else found.sum(axis=0)
                total[where] += whole.reshape(-1, width)
            count[where] += (len(parts) - is_missing.sum(axis=0)).reshape(-1, 1)
    if has_sharded:
        largest[is_sharded] = _sharded(
            total[is_sharded],
            count[is_sharded],
            np.array([[max(1, layer.replicas)] for layer in layers])[is_sharded],
            is_norm=name in NORMS,
            is_complete=_num_with(name, reports) >= world,
        )
    return LayerValues.from_wire(largest[:, 0] if width == 1 else largest)


def are_apart(places: Sequence[Place], layers: Sequence[Layer]) -> bool | None:
    """Whether ranks that looked at the same replicated layers found different norms; None if none can be compared."""
    num = len(layers)
    is_replicated = np.fromiter((layer.placement == "replicated" for layer in layers), dtype=np.bool_, count=num)
    places = [place for place in places if len(place[1]) >= 2]
    if len(places) >= MANY_PLACES:
        found = _SideBySide(places)
        is_used = is_replicated[found.layers]
        num_compared, num_apart = _num_apart(found.low[is_used], found.high[is_used])
        return num_apart > 0.5 * num_compared if num_compared else None
    num_compared = num_apart = 0
    for where, parts in places:
        rows = np.concatenate(parts).reshape(len(parts), -1)[:, is_replicated[where]]
        compared, apart = _num_apart(rows.min(axis=0), rows.max(axis=0))
        num_compared, num_apart = num_compared + compared, num_apart + apart
    return num_apart > 0.5 * num_compared if num_compared else None


def _num_apart(low: Float32, high: Float32) -> tuple[int, int]:
    """How many norms can be compared, and how many of these differ."""
    is_compared = np.isfinite(high) & (low > 0)
    is_apart = high[is_compared] > (1.0 + SAME) * low[is_compared]
    return int(is_compared.sum()), int(is_apart.sum())


class _SideBySide:
    """The smallest and the largest value at each layer of each group, without a look at each group alone."""

    def __init__(self, places: Sequence[Place]) -> None:
        wheres = [where for where, _ in places]
        lengths = np.array([len(parts[0]) for _, parts in places])
        counts = np.array([len(parts) for _, parts in places])
        first = np.cumsum(lengths) - lengths
        within = np.arange(int(lengths.sum())) - np.repeat(first, lengths)
        starts, strides = (np.array([getattr(where, name) for where in wheres]) for name in ("start", "step"))
        self.layers = np.repeat(starts, lengths) + within * np.repeat(strides, lengths)
        values = np.concatenate([part for _, parts in places for part in parts])
        sizes = np.repeat(lengths, counts)
        at = np.arange(len(values)) - np.repeat(np.cumsum(sizes) - sizes - np.repeat(first, counts), sizes)
        self.low = np.full(len(self.layers), np.inf, dtype=np.float32)
        self.high = np.full(len(self.layers), -np.inf, dtype=np.float32)
        with np.errstate(invalid="ignore"):  # NaN stays
            np.minimum.at(self.low, at, values)
            np.maximum.at(self.high, at, values)


def _sharded(total: Float64, count: Float64, replicas: Float64, *, is_norm: bool, is_complete: bool) -> Float64:
    if not is_complete:
        return np.full_like(total, UNSEEN)
    with np.errstate(invalid="ignore", divide="ignore"):
        whole = np.sqrt(total / replicas) if is_norm else total / np.maximum(count, 1)
    return np.where(count == 0, MISSING, whole)


def _num_with(name: str, reports: Mapping[int, StepReport]) -> int:
    return sum(name in report.arrays for report in reports.values())


def by_place(name: str, reports: Mapping[int, StepReport], num_layers: int, width: int = 1) -> list[Place]:
    """The ranks' arrays, grouped by the layers they are about, so that each group is reduced at once."""
    lots: dict[tuple[int, int, int], list[Float32]] = {}
    for report in reports.values():
        values = report.arrays.get(name)
        if values is None:
            continue
        length = len(values)
        if length and values.size == length * width:
            start, stride = report.slices.get(name, WHOLE)
            key = (start, stride, length)
            if key in lots:
                lots[key].append(values)
            else:
                lots[key] = [values]
    found = []
    for (start, stride, length), parts in lots.items():
        last = start + (length - 1) * stride
        if stride and last < num_layers:  # else it belongs to an older layer table of the job
            found.append((slice(start, last + 1, stride), parts))
    return found


def global_norm(norms: LayerValues, layers: Sequence[Layer]) -> float | None:
    """The norm over all layers; None unless every layer of known placement was looked at."""
    is_known = np.fromiter((layer.placement != "unknown" for layer in layers), dtype=np.bool_, count=len(layers))
    used = norms.has & is_known
    if not used.any() or (is_known & ~norms.has & ~norms.is_absent).any():
        return None
    seen = norms.values[used]
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.sqrt(np.sum(np.square(seen))))
