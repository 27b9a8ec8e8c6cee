"""One sample as the journal keeps it: what a step showed of every layer and module, reduced over the ranks.

Design
------
A sample has what its own step showed, unlike `latest`, which keeps older values where a sample shows none: a map over
time must not show a value where no rank looked. Dead units are the exception, since the agent reports them once per
window of several samples; until the next window ends, a sample has those of the last one.

A number that is not finite is kept as it is. In the journal a number below zero means that nothing was shown: -1 where
there was nothing to show, -2 where no rank looked. A column in which nothing was shown is left out. Norms are taken on
every step, so the step in which a gradient first is not finite is kept too, with its gradients alone, although it was
not sampled. A gradient scaler that skips every second step must not fill the journal with those, hence the pause
between two of them.

A packed sample of a transformer of 2,000 parameters has some 40 kB, and one of 150 about 3 kB.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from caboose_daemon.steps.aligned import AlignedStep, middle
from caboose_daemon.steps.masked import LayerValues, Masked
from caboose_daemon.steps.samples.latest import LatestSample
from caboose_daemon.steps.samples.stats import NOT_CALLED, ORDER, ORDER_DTYPE, STATS

Floats = NDArray[np.floating]
MAX_ROWS = 20_000
"""Layers and modules that a sample has at most; of a larger model it has the first ones."""
ONSET_PAUSE = 16
"""Steps from one sample of bad gradients that was kept to the next."""


@dataclass(frozen=True)
class Sample:
    """What one step showed; `columns` by the names of `STATS`."""

    attempt: int
    step: int
    time: float
    is_onset: bool
    """Whether it is the step in which a layer's gradient first was not finite."""
    columns: Mapping[str, LayerValues]
    order: Floats | None = None
    """Each module's place in the order of execution, or NOT_CALLED; None where it was not seen."""

    @property
    def seen(self) -> int:
        """A mask of the statistics that it shows."""
        return sum(STATS[name].bit for name in self.columns)


class Sampler:
    """Takes the samples of one attempt."""

    def __init__(self) -> None:
        self._was_bad = False
        self._last_onset: int | None = None

    def observe(self, step: AlignedStep, latest: LatestSample | None) -> Sample | None:
        """The sample of this step; None where it was not sampled and no gradient went bad in it."""
        is_bad = step.has_layers and step.finite_grad_norm is None and _has_bad(step)
        is_onset = is_bad and not self._was_bad and self._is_pause_over(step.step)
        if step.has_layers:
            self._was_bad = is_bad
        if is_onset:
            self._last_onset = step.step
        if not (step.is_sampled or is_onset):
            return None
        columns = _columns(step, latest) if step.is_sampled else _shown({"grad_norm": step.layer_grad_norm})
        if not columns:
            return None
        order = _order(step) if step.is_sampled else None
        return Sample(step.attempt, step.step, step.time, is_onset, columns, order)

    def _is_pause_over(self, step: int) -> bool:
        return self._last_onset is None or step - self._last_onset >= ONSET_PAUSE


def _has_bad(step: AlignedStep) -> bool:
    return bool(step.layer_grad_norm.is_bad.any())


def _columns(step: AlignedStep, latest: LatestSample | None) -> dict[str, LayerValues]:
    found: dict[str, LayerValues | None] = {}
    for stat in STATS.values():
        if stat.name == "grad_norm":
            found[stat.name] = step.layer_grad_norm if step.has_layers else None
        elif stat.name == "dead":
            found[stat.name] = None if latest is None else _unabsent(latest.modules.get(stat.array))
        elif stat.of == "layer":
            values = step.layer_values(stat.array)
            found[stat.name] = values if values is not None and values.values.ndim == 1 else None
        else:
            found[stat.name] = _of_modules(step, stat.array)
    return _shown({name: values for name, values in found.items() if values is not None})


def _order(step: AlignedStep) -> Floats | None:
    """As the first rank that looked saw it."""
    order = step.module_values("activation_order")
    if order is None:
        return None
    first, has = order.values[0][:MAX_ROWS], order.has[0][:MAX_ROWS]
    return np.where(has & (first < NOT_CALLED), first, NOT_CALLED)


def _unabsent(found: Masked | None) -> LayerValues | None:
    return None if found is None else LayerValues(found.values, found.has, np.zeros(len(found), dtype=np.bool_))


def _of_modules(step: AlignedStep, array: str) -> LayerValues | None:
    """The typical rank; NaN where any rank saw a number that is not finite."""
    found = step.module_values(array)
    if found is None:
        return None
    values = np.asarray(found.values, dtype=np.float32)
    is_bad = ~np.isfinite(values).all(axis=0)
    if array == "activation_std":
        largest = step.module_values("activation_max")
        if largest is not None and largest.shape == values.shape:
            is_bad |= ~np.isfinite(largest.values).all(axis=0)
    seen = found.is_known
    typical = np.zeros(values.shape[1], dtype=np.float32)
    by_all = seen.all(axis=0)
    if by_all.any():
        typical[by_all] = middle(values[:, by_all])
    for column in np.flatnonzero(seen.any(axis=0) & ~by_all):
        typical[column] = middle(values[seen[:, column], column])
    return _unabsent(Masked(np.where(is_bad, np.float32("nan"), typical), is_bad | np.asarray(seen.any(axis=0))))


def _shown(columns: Mapping[str, LayerValues]) -> dict[str, LayerValues]:
    cut = {name: values.head(MAX_ROWS) for name, values in columns.items()}
    return {name: values for name, values in cut.items() if bool(values.has.any())}


def pack(sample: Sample) -> bytes:
    """As the journal keeps it."""
    columns = {name: values.to_wire() for name, values in sample.columns.items()}
    if sample.order is not None:
        columns[ORDER] = sample.order
    with np.errstate(over="ignore"):
        return msgspec.msgpack.encode({n: values.astype(dtype_of(n)).tobytes() for n, values in columns.items()})


def unpack(body: bytes) -> dict[str, Floats]:
    """The columns of a packed sample; those of a statistic that this version does not know are left out."""
    packed = msgspec.msgpack.decode(body, type=dict[str, bytes])
    return {
        name: np.frombuffer(values, dtype_of(name)) for name, values in packed.items() if name in STATS or name == ORDER
    }


def dtype_of(column: str) -> str:
    """The type of a column in the journal."""
    return ORDER_DTYPE if column == ORDER else STATS[column].dtype
