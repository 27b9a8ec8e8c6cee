"""The layers and modules of a job in columns, with what the last sample showed: for the API and the journal."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caboose_daemon.jobs.job import Job

MAX_ROWS = 20_000
"""Layers and modules that are told; a model with more is cut, and `num_layers` says so."""


def layer_table(job: Job) -> dict[str, Any] | None:
    """Columns of equal length, None where nothing was seen; None where no sample was taken yet."""
    latest_sample, last = job.meters.latest_sample, job.last
    if latest_sample is None:
        return None
    layers, modules = job.layers[:MAX_ROWS], job.modules[:MAX_ROWS]
    norms = None if last is None or last.grad_norm is None else last.layer_grad_norm
    return {
        "step": latest_sample.step,
        "num_layers": len(job.layers),
        "num_modules": len(job.modules),
        "layers": {
            "name": [layer.name for layer in layers],
            "kind": [layer.kind for layer in layers],
            "numel": [layer.numel for layer in layers],
            "is_trainable": [layer.trainable for layer in layers],
            "grad_norm": _column(norms, layers),
            "weight_norm": _column(latest_sample.layers.get("weight_norm"), layers),
            "update_ratio": _column(latest_sample.layers.get("update_ratio"), layers),
        },
        "modules": {
            "name": [module.name for module in modules],
            "kind": [module.kind for module in modules],
            "std": _column(latest_sample.modules.get("activation_std"), modules),
            "dead": _column(latest_sample.modules.get("activation_dead"), modules),
            "saturated": _column(latest_sample.modules.get("activation_saturated"), modules),
        },
    }


def _column(values: NDArray[np.float64] | None, rows: Sequence[object]) -> list[float | None]:
    if values is None or len(values) < len(rows):
        return [None] * len(rows)
    return [float(value) if np.isfinite(value) else None for value in values[: len(rows)]]
