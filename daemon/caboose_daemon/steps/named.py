"""Numbers of a step that have names of their own: the user's metrics, validations, and the parameter groups.

Design
------
The names come from the network, so a job may have at most `MAX_NAMES` of each source at once in memory, in the journal
and in a curve; a name that was not admitted is counted and has no curve. A name keeps its place as long as the daemon
runs. Groups count only where there are several: with one, its numbers are those of the job.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from caboose_daemon.shallow import shallow
from caboose_daemon.steps.aligned import AlignedStep
from caboose_daemon.steps.masked import LayerValues
from caboose_daemon.steps.settings import as_numbers
from caboose_wire import Event, Group, Layer

Source = Literal["metric", "validation", "group_lr", "group_norm"]
"""What a name is of: `monitor.step(metrics=)`, `monitor.validation`, the rate and the gradient norm of a group."""
SOURCES: tuple[Source, ...] = ("metric", "validation", "group_lr", "group_norm")
MAX_NAMES = 32
MAX_GROUPS = 8
VALIDATION = "validation"


class NamedNumber(NamedTuple):
    """One number."""

    source: Source
    name: str
    value: float


class NamedNumbers:
    """The names that one job has used, and the last value of each of the user's metrics."""

    def __init__(self) -> None:
        self._known: dict[Source, set[str]] = {source: set() for source in SOURCES}
        self.metrics: dict[str, float] = {}
        """The last value of each metric that steps report."""
        self.num_left_out = 0
        """Numbers of the last step that had no place."""

    def copy(self) -> "NamedNumbers":
        """With a list of metrics of its own, for a reader on another thread."""
        numbers = shallow(self)
        numbers.metrics = dict(self.metrics)
        return numbers

    def admit(self, numbers: Iterable[NamedNumber]) -> tuple[NamedNumber, ...]:
        """Those whose name has a place, or gets one, by source and name."""
        wanted = tuple(numbers)
        kept = in_order(number for number in wanted if self._has_place(number.source, number.name))
        self.num_left_out = len(wanted) - len(kept)
        self.metrics |= {number.name: number.value for number in kept if number.source == "metric"}
        return kept

    def restore(self, numbers: Iterable[NamedNumber]) -> None:
        """Gives places to the names that a journal has; `numbers` are in the order of their steps."""
        for number in numbers:
            self.admit((number,))

    def _has_place(self, source: Source, name: str) -> bool:
        known = self._known[source]
        if name in known:
            return True
        if len(known) >= MAX_NAMES:
            return False
        known.add(name)
        return True


def in_order(numbers: Iterable[NamedNumber]) -> tuple[NamedNumber, ...]:
    """By source and name: the same order live and from a journal."""
    return tuple(sorted(numbers, key=lambda number: (number.source, number.name)))


@dataclass(frozen=True)
class GroupRows:
    """The parameter groups of a job with several, and the layers of each; empty for one group."""

    names: tuple[str, ...] = ()
    layers: tuple[NDArray[np.intp], ...] = ()
    """Rows of the layer table, without those of unknown placement; empty where the agent does not tell them."""

    @classmethod
    def of(cls, groups: Sequence[Group], layers: Sequence[Layer]) -> "GroupRows":
        if len(groups) < 2:
            return cls()
        own: list[list[int]] = [[] for _ in groups]
        for row, layer in enumerate(layers):
            if 0 <= layer.group < len(groups) and layer.placement != "unknown":
                own[layer.group].append(row)
        names = unique(group.name for group in groups[:MAX_GROUPS])
        return cls(tuple(names), tuple(np.array(rows, dtype=np.intp) for rows in own[: len(names)]))


def of_step(step: AlignedStep, groups: GroupRows) -> Iterator[NamedNumber]:
    """The named numbers of one step."""
    for name in sorted(step.metrics):
        yield NamedNumber("metric", name, step.metrics[name])
    for name, rate in zip(groups.names, step.lr, strict=False):
        yield NamedNumber("group_lr", name, rate)
    if groups.names and step.has_layers and not step.has_local_gradients:
        for name, rows in zip(groups.names, groups.layers, strict=True):
            norm = _norm(step.layer_grad_norm, rows)
            if norm is not None:
                yield NamedNumber("group_norm", name, norm)


def _norm(norms: LayerValues, rows: NDArray[np.intp]) -> float | None:
    """The norm over some layers; None unless every one of them was looked at."""
    if not len(rows) or len(norms) <= int(rows[-1]):
        return None
    has = norms.has[rows]
    if not has.any() or not (has | norms.is_absent[rows]).all():
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.sqrt(np.sum(np.square(norms.values[rows[has]], dtype=np.float64))))


def of_validation(event: Event) -> list[NamedNumber]:
    """The numbers of a validation; none of another event."""
    if event.kind != VALIDATION:
        return []
    return [NamedNumber("validation", name, value) for name, value in as_numbers(event.fields).items()]


def unique(names: Iterable[str]) -> list[str]:
    """The names with a number behind the second and further of a kind."""
    found: list[str] = []
    for name in names:
        number, wanted = 2, name
        while wanted in found:
            wanted, number = f"{name} ({number})", number + 1
        found.append(wanted)
    return found
