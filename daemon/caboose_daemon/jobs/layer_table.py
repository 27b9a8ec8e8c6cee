"""The layers and modules of a job in columns, with the latest sample of each: for the API and the journal."""

from collections.abc import Sequence
from typing import Any

from caboose_daemon.jobs.job import Job
from caboose_daemon.steps.masked import Masked

MAX_ROWS = 20_000
"""Layers and modules in the table; of a larger model it has the first ones, and `num_layers` the full number."""


def layer_table(job: Job) -> dict[str, Any] | None:
    """Columns of equal length, None where nothing was seen; None before the first sampled step."""
    latest, last = job.meters.latest, job.last
    if latest is None:
        return None
    layers, modules = job.layers[:MAX_ROWS], job.modules[:MAX_ROWS]
    norms = None if last is None else last.whole_layer_grad_norm
    return {
        "step": latest.step,
        "num_layers": len(job.layers),
        "num_modules": len(job.modules),
        "layers": {
            "name": [layer.name for layer in layers],
            "kind": [layer.kind for layer in layers],
            "numel": [layer.numel for layer in layers],
            "is_trainable": [layer.trainable for layer in layers],
            "grad_norm": _column(norms, layers),
            "weight_norm": _column(latest.layers.get("weight_norm"), layers),
            "update_ratio": _column(latest.layers.get("update_ratio"), layers),
        },
        "modules": {
            "name": [module.name for module in modules],
            "kind": [module.kind for module in modules],
            "std": _column(latest.modules.get("activation_std"), modules),
            "dead": _column(latest.modules.get("activation_dead"), modules),
            "saturated": _column(latest.modules.get("activation_saturated"), modules),
        },
    }


def _column(found: Masked | None, rows: Sequence[object]) -> list[float | None]:
    if found is None or len(found) < len(rows):
        return [None] * len(rows)
    numbers = zip(found.values[: len(rows)].tolist(), found.is_finite[: len(rows)].tolist(), strict=True)
    return [value if is_finite else None for value, is_finite in numbers]
