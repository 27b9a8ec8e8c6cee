"""One sample as the journal keeps it: every layer and module of a sampled step, reduced over the ranks.

Design
------
A sample has only what its own step reported. `latest` differs: it fills gaps from earlier samples. A map over time must
not show a value that was not measured. Dead units are the exception: agents report them once per window of several
samples, and each sample repeats the last window's value.

Values are stored by position, without names; below zero means not measured. A column without values is left out. Norms
are taken on every step, so the step at which a gradient first is not finite is kept too, with its gradients only, even
if it was not a sampled step: a gradient scaler makes such steps in healthy runs, so at most one is kept per stretch of
steps.

A packed sample of a transformer with 2,000 parameters has about 40 kB, one with 150 parameters about 3 kB.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from caboose_daemon.steps.aligned import AlignedStep, middle
from caboose_daemon.steps.reduce_ranks import UNSEEN
from caboose_daemon.steps.samples.latest import LatestSample
from caboose_daemon.steps.samples.stats import NOT_CALLED, ORDER, ORDER_DTYPE, STATS

Floats = NDArray[np.floating]
MAX_ROWS = 20_000
"""Layers and modules of which a history is kept; a larger model's last ones have none."""
ONSET_PAUSE = 16
"""Steps from one look at gradients that went bad to the next."""


@dataclass(frozen=True)
class Sample:
    """What one step showed; `columns` by the names of `STATS`, and the modules' order."""

    attempt: int
    step: int
    time: float
    is_onset: bool
    """Whether it is the step in which a layer's gradient first was not finite."""
    columns: Mapping[str, Floats]

    @property
    def seen(self) -> int:
        """A mask of the statistics that it shows."""
        return sum(STATS[name].bit for name in self.columns if name in STATS)


class Sampler:
    """Takes the samples of one attempt."""

    def __init__(self) -> None:
        self._was_bad = False
        self._last_onset: int | None = None

    def observe(self, step: AlignedStep, latest_sample: LatestSample | None) -> Sample | None:
        """The sample that this step gives; None where it is a step like most."""
        is_bad = step.has_layers and step.finite_grad_norm is None and _has_bad(step)
        is_onset = is_bad and not self._was_bad and self._may_tell(step.step)
        if step.has_layers:
            self._was_bad = is_bad
        if is_onset:
            self._last_onset = step.step
        if not (step.is_sampled or is_onset):
            return None
        columns = _columns(step, latest_sample) if step.is_sampled else _shown({"grad_norm": step.layer_grad_norm})
        return Sample(step.attempt, step.step, step.time, is_onset, columns) if columns else None

    def _may_tell(self, step: int) -> bool:
        return self._last_onset is None or step - self._last_onset >= ONSET_PAUSE


def _has_bad(step: AlignedStep) -> bool:
    return not bool(np.isfinite(step.layer_grad_norm).all())


def _columns(step: AlignedStep, latest_sample: LatestSample | None) -> dict[str, Floats]:
    found: dict[str, Floats | None] = {}
    for stat in STATS.values():
        if stat.name == "grad_norm":
            found[stat.name] = step.layer_grad_norm if step.has_layers else None
        elif stat.name == "dead":
            found[stat.name] = None if latest_sample is None else latest_sample.modules.get(stat.array)
        elif stat.of == "layer":
            values = step.layer_values(stat.array)
            found[stat.name] = values if values is not None and values.ndim == 1 else None
        else:
            found[stat.name] = _of_modules(step, stat.array)
    if found["dead"] is not None:
        found["dead"] = np.where(np.isnan(found["dead"]), UNSEEN, found["dead"])
    columns = _shown({name: values for name, values in found.items() if values is not None})
    order = step.module_values("activation_order")
    if order is not None and columns:
        first = np.asarray(order[1][0][:MAX_ROWS])
        columns[ORDER] = np.where((first >= 0) & (first < NOT_CALLED), first, NOT_CALLED)
    return columns


def _of_modules(step: AlignedStep, array: str) -> Floats | None:
    """The typical rank; not a number where any rank saw something that is none."""
    found = step.module_values(array)
    if found is None:
        return None
    values = np.asarray(found[1], dtype=np.float32)
    is_bad = ~np.isfinite(values).all(axis=0)
    if array == "activation_std":
        largest = step.module_values("activation_max")
        if largest is not None and largest[1].shape == values.shape:
            is_bad |= ~np.isfinite(largest[1]).all(axis=0)
    seen = values >= 0
    typical = np.full(values.shape[1], UNSEEN, dtype=np.float32)
    by_all = seen.all(axis=0)
    if by_all.any():
        typical[by_all] = middle(values[:, by_all])  # type: ignore[arg-type]  # a median of any precision
    for column in np.flatnonzero(seen.any(axis=0) & ~by_all):
        typical[column] = middle(values[seen[:, column], column])
    return np.where(is_bad, np.float32("nan"), typical)


def _shown(columns: Mapping[str, Floats]) -> dict[str, Floats]:
    cut = {name: values[:MAX_ROWS] for name, values in columns.items()}
    return {name: values for name, values in cut.items() if bool((~(values < 0)).any())}


def pack(sample: Sample) -> bytes:
    """As it lies in the journal."""
    with np.errstate(over="ignore"):
        return msgspec.msgpack.encode(
            {name: values.astype(dtype_of(name)).tobytes() for name, values in sample.columns.items()}
        )


def unpack(body: bytes) -> dict[str, Floats]:
    """The columns of a packed sample; those of a statistic that is not known here are left out."""
    packed = msgspec.msgpack.decode(body, type=dict[str, bytes])
    return {
        name: np.frombuffer(values, dtype_of(name)) for name, values in packed.items() if name in STATS or name == ORDER
    }


def dtype_of(column: str) -> str:
    """How a column lies in the journal."""
    return ORDER_DTYPE if column == ORDER else STATS[column].dtype
