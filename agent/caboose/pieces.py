"""Collects the device values of one step under names, and packs them into one vector that leaves the device at once.

Design
------
Scalars (a norm per layer, the loss) are stacked in one operation; arrays of sampled steps are appended flat. The
vector is float32: everything that travels is a statistic. What is where is kept beside it, on the host, and undone
by the sender.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from caboose.readback import Readback
from caboose_wire.messages import Float32


@dataclass(slots=True)
class Part:
    """One named stretch of the vector."""

    name: str
    rows: Sequence[int]
    """Which rows of its table the values are for; empty for a plain scalar."""
    width: int
    """Values per row."""


class Pieces:
    """The device values of one step."""

    def __init__(self) -> None:
        self._scalars: list[torch.Tensor] = []
        self._scalar_parts: list[Part] = []
        self._arrays: list[torch.Tensor] = []
        self._array_parts: list[Part] = []

    def add_scalar(self, name: str, value: torch.Tensor) -> None:
        """A tensor of one element."""
        self._scalars.append(value)
        self._scalar_parts.append(Part(name, (), 1))

    def add_scalars(self, name: str, values: Sequence[torch.Tensor], rows: Sequence[int]) -> None:
        """Many tensors of one element, one per row."""
        self._scalars += values
        self._scalar_parts.append(Part(name, rows, 1))

    def add(self, name: str, values: torch.Tensor, rows: Sequence[int]) -> None:
        """An array of one or two dimensions, with a row per entry of `rows`."""
        self._arrays.append(values)
        self._array_parts.append(Part(name, rows, values.shape[1] if values.dim() == 2 else 1))

    def pack(self) -> "Vector | None":
        """Everything so far as one vector on its way to the host; None if there is nothing."""
        if not self._scalars and not self._arrays:
            return None
        device = (self._arrays or self._scalars)[-1].device
        flat = [array.to(device, non_blocking=True).reshape(-1).to(torch.float32) for array in self._arrays]
        if self._scalars:
            together = torch.stack(_alike(self._scalars, device)).to(torch.float32)
            flat.insert(0, together)
        vector = flat[0] if len(flat) == 1 else torch.cat(flat)
        return Vector(Readback(vector), [*self._scalar_parts, *self._array_parts])


def _alike(scalars: list[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """The scalars as they can be stacked: on one device, without dimensions, of one type."""
    kind = scalars[-1].dtype
    return [
        s
        if s.device == device and s.dtype is kind and not s.dim()
        else s.to(device, kind, non_blocking=True).reshape(())
        for s in scalars
    ]


@dataclass(slots=True)
class Vector:
    """The packed values, readable once the device has got so far."""

    readback: Readback
    parts: list[Part]

    def is_ready(self) -> bool:
        """Whether `read` would return at once."""
        return self.readback.is_ready()

    def read(self) -> "dict[str, tuple[Sequence[int], Float32]]":
        """Rows and values by name; values of several parts of one name are put together."""
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
