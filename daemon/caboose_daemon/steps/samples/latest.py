"""What the last sample showed, layer by layer and module by module: all ranks reduced to one row of numbers.

A sampled step with thousands of ranks holds tens of megabytes; what dashboards, pages and diagnoses want of it later is
this.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from caboose_daemon.steps.aligned import AlignedStep, middle

Floats = NDArray[np.float64]
OF_LAYERS = ("weight_norm", "update_ratio")
OF_MODULES = ("activation_std", "activation_dead", "activation_saturated")


@dataclass(frozen=True)
class LatestSample:
    """One value per layer or module; NaN where nothing was seen."""

    step: int
    layers: Mapping[str, Floats]
    modules: Mapping[str, Floats]


def update_latest(step: AlignedStep, before: LatestSample | None) -> LatestSample:
    """The step's sample; what it does not show stays as it was seen before."""
    layers = dict(before.layers) if before is not None else {}
    modules = dict(before.modules) if before is not None else {}
    for name in OF_LAYERS:
        values = step.layer_values(name)
        if values is not None and values.ndim == 1:
            layers[name] = _laid_over(np.where(values >= 0, values, np.nan), layers.get(name))
    for name in OF_MODULES:
        found = step.module_values(name)
        if found is not None:
            seen = _over_ranks(name, np.asarray(found[1], dtype=np.float64))
            modules[name] = _laid_over(seen, modules.get(name))
    return LatestSample(step.step, layers, modules)


def _laid_over(new: Floats, old: Floats | None) -> Floats:
    """One sample may show a part only: the ranks divide the layers among them, dead units need several samples."""
    return new if old is None or len(old) != len(new) else np.where(np.isnan(new), old, new)


def _over_ranks(name: str, values: Floats) -> Floats:
    """The typical rank; of dead units the least, which bounds what is dead everywhere."""
    seen = values >= 0
    if name == "activation_dead":
        least = np.where(seen, values, np.inf).min(axis=0)
        return np.where(np.isfinite(least), least, np.nan)
    if seen.all():
        return middle(values)
    return np.array(
        [middle(column[has]) if has.any() else np.nan for column, has in zip(values.T, seen.T, strict=True)]
    )
