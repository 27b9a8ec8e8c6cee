"""The latest sample of every layer and module, reduced over the ranks to one number each.

A sampled step with thousands of ranks has tens of megabytes; this is the part of it that dashboards, pages and
diagnoses read later.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from caboose_daemon.steps.aligned import AlignedStep, middle
from caboose_daemon.steps.masked import LayerValues, Masked, ModuleValues

OF_LAYERS = ("weight_norm", "update_ratio")
OF_MODULES = (
    *("activation_std", "activation_dead", "activation_saturated"),
    *("router_entropy", "router_dead", "attention_logit"),
)
LEAST_OF_RANKS = frozenset({"activation_dead", "router_dead"})
"""Ranks have their own data: the least bounds what is dead everywhere."""
MOST_OF_RANKS = frozenset({"router_entropy", "attention_logit"})
"""Likewise: a router is as even as on the rank where it is most so, and a logit as large as anywhere."""


@dataclass(frozen=True)
class LatestSample:
    """One value per layer or module, by the names of the wire's arrays."""

    step: int
    layers: Mapping[str, Masked]
    modules: Mapping[str, Masked]


def update_latest(step: AlignedStep, before: LatestSample | None) -> LatestSample:
    """The sample of this step; what it does not show stays as it was before."""
    layers = dict(before.layers) if before is not None else {}
    modules = dict(before.modules) if before is not None else {}
    for name in OF_LAYERS:
        values = step.layer_values(name)
        if values is not None and values.values.ndim == 1:
            layers[name] = _updated(Masked(values.values, values.is_known), layers.get(name))
    for name in OF_MODULES:
        found = step.module_values(name)
        if found is not None:
            modules[name] = _updated(_over_ranks(name, found), modules.get(name))
    return LatestSample(step.step, layers, modules)


@dataclass(frozen=True)
class LatestNorms:
    """The gradient norm of every layer when it was last measured: norms may be taken every few steps only."""

    step: int
    values: LayerValues


def update_norms(step: AlignedStep, before: LatestNorms | None) -> LatestNorms | None:
    """With the norms of this step; a layer that it does not show keeps its value."""
    if step.has_local_gradients:
        return None  # no rank's own gradient is that of the model
    found = step.whole_layer_grad_norm
    if not step.has_layers or not len(found):
        return before
    if before is None or len(before.values) != len(found):
        return LatestNorms(step.step, found)
    is_new = found.has | found.is_absent
    old = before.values
    return LatestNorms(
        step.step,
        LayerValues(
            np.where(is_new, found.values, old.values),
            np.where(is_new, found.has, old.has),
            np.where(is_new, found.is_absent, old.is_absent),
        ),
    )


def _updated(new: Masked, old: Masked | None) -> Masked:
    """One sample may show a part only: the ranks divide the layers among them, dead units need several samples."""
    if old is None or len(old) != len(new):
        return new
    return Masked(np.where(new.has, new.values, old.values), new.has | old.has)


def _over_ranks(name: str, found: ModuleValues) -> Masked:
    """The typical rank, or the least or the most of them."""
    values, seen = np.asarray(found.values, dtype=np.float64), found.is_known
    if name in LEAST_OF_RANKS | MOST_OF_RANKS:
        sign = 1.0 if name in LEAST_OF_RANKS else -1.0
        least = np.where(seen, sign * values, np.inf).min(axis=0)
        has = np.asarray(seen.any(axis=0))
        return Masked(np.where(has, sign * least, 0.0), has)
    has = np.asarray(seen.any(axis=0))
    if seen.all():
        return Masked(middle(values), has)
    columns = zip(values.T, seen.T, strict=True)
    return Masked(np.array([float(middle(column[by])) if by.any() else 0.0 for column, by in columns]), has)
