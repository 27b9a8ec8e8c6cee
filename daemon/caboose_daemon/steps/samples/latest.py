"""What the last closer look showed, layer by layer and module by module: all ranks reduced to one row of numbers.

A sampled step with thousands of ranks holds tens of megabytes; what dashboards, pages and diagnoses want of it later is
this.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from caboose_daemon.steps.aligned import AlignedStep, middle
from caboose_daemon.steps.masked import Masked, ModuleValues

OF_LAYERS = ("weight_norm", "update_ratio")
OF_MODULES = ("activation_std", "activation_dead", "activation_saturated")


@dataclass(frozen=True)
class LatestSample:
    """One value per layer or module, by the names of the wire's arrays."""

    step: int
    layers: Mapping[str, Masked]
    modules: Mapping[str, Masked]


def update_latest(step: AlignedStep, before: LatestSample | None) -> LatestSample:
    """The step's closer look; what it does not show stays as it was seen before."""
    layers = dict(before.layers) if before is not None else {}
    modules = dict(before.modules) if before is not None else {}
    for name in OF_LAYERS:
        values = step.layer_values(name)
        if values is not None and values.values.ndim == 1:
            layers[name] = _laid_over(Masked(values.values, values.is_known), layers.get(name))
    for name in OF_MODULES:
        found = step.module_values(name)
        if found is not None:
            modules[name] = _laid_over(_over_ranks(name, found), modules.get(name))
    return LatestSample(step.step, layers, modules)


def _laid_over(new: Masked, old: Masked | None) -> Masked:
    """One sample may show a part only: the ranks divide the layers among them, dead units need several samples."""
    if old is None or len(old) != len(new):
        return new
    return Masked(np.where(new.has, new.values, old.values), new.has | old.has)


def _over_ranks(name: str, found: ModuleValues) -> Masked:
    """The typical rank; of dead units the least, which bounds what is dead everywhere."""
    values, seen = np.asarray(found.values, dtype=np.float64), found.is_known
    if name == "activation_dead":
        least = np.where(seen, values, np.inf).min(axis=0)
        has = np.isfinite(least)
        return Masked(np.where(has, least, 0.0), has)
    has = np.asarray(seen.any(axis=0))
    if seen.all():
        return Masked(middle(values), has)
    columns = zip(values.T, seen.T, strict=True)
    return Masked(np.array([float(middle(column[by])) if by.any() else 0.0 for column, by in columns]), has)
