"""One closer look as it is kept: what a step showed of every layer and module, all ranks reduced to one number each.

Design
------
A look holds what its own step showed, unlike `closeup`, which lays each look over what was seen before: a map over time
must not show a value where nobody looked. Dead units are the exception, since the agent tells them once a window of
several looks; until the next window ends, a look carries the last one's.

A number that is not finite is kept as it is. In the journal a number below zero says that nothing was shown: -1 where
there was nothing to show, -2 where no rank looked. A column in which nothing was shown is left out. Norms are taken on
every step, so that the step in which a gradient first is not finite is kept too, with its gradients alone, although it
was no closer look: a gradient scaler that skips every second step may not fill the journal with those, hence the pause
between two of them.

A packed look of a transformer of 2,000 parameters has some 40 kB, and one of 150 about 3 kB.
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
"""Layers and modules of which a history is kept; a larger model's last ones have none."""
ONSET_PAUSE = 16
"""Steps from one look at gradients that went bad to the next."""


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
    """Takes the looks of one attempt."""

    def __init__(self) -> None:
        self._was_bad = False
        self._last_onset: int | None = None

    def observe(self, step: AlignedStep, closeup: LatestSample | None) -> Sample | None:
        """The look that this step gives; None where it is a step like most."""
        is_bad = step.has_layers and step.finite_grad_norm is None and _has_bad(step)
        is_onset = is_bad and not self._was_bad and self._may_tell(step.step)
        if step.has_layers:
            self._was_bad = is_bad
        if is_onset:
            self._last_onset = step.step
        if not (step.is_sampled or is_onset):
            return None
        columns = _columns(step, closeup) if step.is_sampled else _shown({"grad_norm": step.layer_grad_norm})
        if not columns:
            return None
        order = _order(step) if step.is_sampled else None
        return Sample(step.attempt, step.step, step.time, is_onset, columns, order)

    def _may_tell(self, step: int) -> bool:
        return self._last_onset is None or step - self._last_onset >= ONSET_PAUSE


def _has_bad(step: AlignedStep) -> bool:
    return bool(step.layer_grad_norm.is_bad.any())


def _columns(step: AlignedStep, closeup: LatestSample | None) -> dict[str, LayerValues]:
    found: dict[str, LayerValues | None] = {}
    for stat in STATS.values():
        if stat.name == "grad_norm":
            found[stat.name] = step.layer_grad_norm if step.has_layers else None
        elif stat.name == "dead":
            found[stat.name] = None if closeup is None else _unabsent(closeup.modules.get(stat.array))
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
    """The typical rank; not a number where any rank saw something that is none."""
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


def pack(look: Sample) -> bytes:
    """As it lies in the journal."""
    columns = {name: values.to_wire() for name, values in look.columns.items()}
    if look.order is not None:
        columns[ORDER] = look.order
    with np.errstate(over="ignore"):
        return msgspec.msgpack.encode({n: values.astype(dtype_of(n)).tobytes() for n, values in columns.items()})


def unpack(body: bytes) -> dict[str, Floats]:
    """The columns of a packed look; those of a statistic that is not known here are left out."""
    packed = msgspec.msgpack.decode(body, type=dict[str, bytes])
    return {
        name: np.frombuffer(values, dtype_of(name)) for name, values in packed.items() if name in STATS or name == ORDER
    }


def dtype_of(column: str) -> str:
    """How a column lies in the journal."""
    return ORDER_DTYPE if column == ORDER else STATS[column].dtype
