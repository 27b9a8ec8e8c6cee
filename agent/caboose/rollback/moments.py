"""Whether an optimizer's moments carry the trace of a spike: those of a snapshot, compared with an older one's.

Design
------
A snapshot is restored bit for bit, so what it holds of a spike comes back too. The second moments forget slowly: a
gradient a hundred times too large makes them ten times larger for thousands of steps, and the updates smaller. Only a
snapshot that was taken before its fault was dated can have that. Snapshots are in host memory, so both are read there,
by the thread that checks them, and only when a rollback is due.
"""

import math

import torch

from caboose.rollback.slots import Slot

SQUARED = ("exp_avg_sq", "exp_avg_sq_row", "exp_avg_sq_col", "square_avg", "max_exp_avg_sq")
PLAIN = ("exp_avg", "momentum_buffer", "grad_avg", "exp_inf")
TRACE = 3.0
"""Size of the moments over that of an older snapshot from which they may carry the trace of a spike."""


def growth(slot: Slot, older: Slot) -> float | None:
    """The size of the moments over that in an older snapshot, the larger of both kinds; None without any."""
    sizes, before = _sizes(slot), _sizes(older)
    ratios = [now / then for now, then in zip(sizes, before, strict=True) if now > 0.0 and then > 0.0]
    return max(ratios, default=None)


def _sizes(slot: Slot) -> tuple[float, float]:
    """The size of the second moments, as of a gradient, and of the first."""
    squared = first = 0.0
    for name in slot.names:
        if not name.startswith("optimizer/"):
            continue
        kind = name.rpartition("/")[2]
        if kind not in SQUARED and kind not in PLAIN:
            continue
        (values,) = slot.views([name])
        if kind in SQUARED:
            squared += float(values.sum(dtype=torch.float64))
        else:
            first += float(torch.linalg.vector_norm(values, dtype=torch.float64)) ** 2
    return math.sqrt(max(0.0, squared)), math.sqrt(first)
