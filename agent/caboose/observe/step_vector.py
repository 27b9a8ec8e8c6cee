"""Collects the device values of one step by name, and packs them into one vector.

Design
------
Norms, one per layer, are stacked in one operation; everything else is appended flat. The vector is float32, since every
value is a statistic. Its layout is kept on the host, and the sender unpacks it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from caboose.tensors.readback import Readback
from caboose_wire.fields import Float32


@dataclass(slots=True)
class Stretch:
    """A named part of the vector."""

    name: str
    rows: Sequence[int]
    """The rows of its table; empty for a scalar."""
    width: int
    """Values per row."""


class StepVector:
    """The device values of one step."""

    def __init__(self) -> None:
        self._values: list[torch.Tensor] = []
        self._parts: list[Stretch] = []

    @property
    def is_empty(self) -> bool:
        """Whether there are no values."""
        return not self._values

    def add_scalar(self, name: str, value: torch.Tensor) -> None:
        """A tensor of one element."""
        self._values.append(value.reshape(1))
        self._parts.append(Stretch(name, (), 1))

    def add_scalars(self, name: str, values: Sequence[torch.Tensor], rows: Sequence[int]) -> Stretch:
        """Many tensors of one element, one per row."""
        self._values.append(torch.stack(tuple(values)))
        self._parts.append(Stretch(name, rows, 1))
        return self._parts[-1]

    def add(self, name: str, values: torch.Tensor, rows: Sequence[int]) -> Stretch:
        """An array of one or two dimensions, with a row per entry of `rows`."""
        self._values.append(values.reshape(-1))
        self._parts.append(Stretch(name, rows, values.shape[1] if values.dim() == 2 else 1))
        return self._parts[-1]

    def drop(self, parts: Sequence[Stretch]) -> None:
        """Removes these parts."""
        for part in parts:
            number = next(i for i, known in enumerate(self._parts) if known is part)
            del self._parts[number], self._values[number]

    def pack(self) -> "Vector | None":
        """All values as one vector, copied to the host without waiting; None if there are none."""
        if not self._values:
            return None
        device = self._values[0].device
        alike = [
            v if v.dtype is torch.float32 and v.device == device else v.to(device, torch.float32, non_blocking=True)
            for v in self._values
        ]
        return Vector(Readback(torch.cat(alike)), self._parts)


@dataclass(slots=True)
class Vector:
    """The packed values, readable once the device has reached them."""

    readback: Readback
    parts: list[Stretch]

    def is_ready(self) -> bool:
        """Whether `read` would return at once."""
        return self.readback.is_ready()

    def read(self) -> "dict[str, tuple[Sequence[int], Float32]]":
        """Rows and values by name; parts of one name are joined."""
        values = self.readback.read()
        found: dict[str, tuple[Sequence[int], Float32]] = {}
        start = 0
        for part in self.parts:
            stop = start + max(1, len(part.rows)) * part.width
            piece = values[start:stop]
            if part.width > 1:
                piece = piece.reshape(-1, part.width)
            if part.name in found:
                rows, before = found[part.name]
                found[part.name] = ([*rows, *part.rows], np.concatenate([before, piece]))
            else:
                found[part.name] = (part.rows, piece)
            start = stop
        return found
