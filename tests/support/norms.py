"""The norm that a report's gradients have together."""

import math

import numpy as np

from caboose_wire import StepReport


def grad_norm(report: StepReport) -> float | None:
    """Of the layers in the report, before clipping; None where it has none."""
    norms = report.arrays.get("grad_norm")
    if norms is None:
        return None
    seen = norms[norms != -1.0].astype(np.float64)
    return math.sqrt(seen @ seen) if len(seen) else None
