"""Numbers of layers and modules, each with a mask of what was seen.

Design
------
On the wire and in the journal a number below zero means that there is none: -1 where there was nothing to show (a layer
without a gradient), -2 where no rank looked. Inside the daemon a mask has that, and a value whose mask is False is 0
and means nothing. NaN is a number that a rank reported as NaN. Masks are plain boolean arrays: `numpy.ma` costs many
times as much on arrays of this size.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]
Bools = NDArray[np.bool_]

MISSING = -1.0
"""A layer that had nothing to show, such as no gradient."""
UNSEEN = -2.0
"""A layer that no rank looked at in this step."""


@dataclass(frozen=True, eq=False)
class Masked:
    """One number per row, or one row of bins."""

    values: Floats
    has: Bools
    """Whether a value was seen; it may be NaN or infinite."""

    def __len__(self) -> int:
        return len(self.has)

    @cached_property
    def is_known(self) -> Bools:
        """Whether a value was seen that is not NaN."""
        first = self.values if self.values.ndim == self.has.ndim else self.values[:, 0]
        return self.has & ~np.isnan(first)

    @property
    def is_finite(self) -> Bools:
        """Whether a finite value was seen."""
        return self.has & np.isfinite(self.values)

    @property
    def is_bad(self) -> Bools:
        """Whether a value was seen that is NaN or infinite."""
        return ~np.isfinite(self.values)


@dataclass(frozen=True, eq=False)
class LayerValues(Masked):
    """One number per layer (or module), reduced over the ranks."""

    is_absent: Bools
    """Whether a rank looked and there was nothing to show."""

    @classmethod
    def from_wire(cls, values: Floats) -> "LayerValues":
        """Takes the wire's negative numbers out of an array of one number, or one row of bins, per layer."""
        first = values if values.ndim == 1 else values[:, 0]
        has = ~(first < 0)
        if not has.all():
            values = np.where(has if values.ndim == 1 else has[:, None], values, values.dtype.type(0))
        return cls(values, has, first == MISSING)

    def to_wire(self) -> Floats:
        """The same as one array with -1 and -2, as the journal keeps it."""
        return np.where(self.has, self.values, np.where(self.is_absent, MISSING, UNSEEN).astype(self.values.dtype))

    def part(self, rows: slice) -> "LayerValues":
        """Some of the rows."""
        return LayerValues(self.values[rows], self.has[rows], self.is_absent[rows])

    def head(self, num: int) -> "LayerValues":
        """The first rows."""
        return self if len(self) <= num else LayerValues(self.values[:num], self.has[:num], self.is_absent[:num])

    @property
    def num_unseen(self) -> int:
        """Layers that no rank looked at."""
        return int(np.sum(~(self.has | self.is_absent)))


NO_LAYERS = LayerValues.from_wire(np.zeros(0))


class ModuleValues:
    """One number per rank and module; `ranks` are the ranks of the rows."""

    def __init__(self, ranks: list[int], on_wire: Floats) -> None:
        self.ranks = ranks
        self._on_wire = on_wire

    def columns(self, rows: NDArray[np.intp]) -> "ModuleValues":
        """Some of the modules."""
        return ModuleValues(self.ranks, self._on_wire[:, rows[rows < self._on_wire.shape[1]]])

    @property
    def shape(self) -> tuple[int, ...]:
        return self._on_wire.shape

    @cached_property
    def has(self) -> Bools:
        """Whether the rank saw a value; it may be NaN or infinite."""
        return ~(self._on_wire < 0)

    @cached_property
    def values(self) -> Floats:
        """0 where `has` is False."""
        return self._on_wire if self.has.all() else np.where(self.has, self._on_wire, self._on_wire.dtype.type(0))

    @cached_property
    def is_known(self) -> Bools:
        """Whether the rank saw a value that is not NaN."""
        return self._on_wire >= 0
