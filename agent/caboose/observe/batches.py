"""The batches of the watched loader: index, epoch and shape always, range and bad elements on sampled steps."""

import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import msgspec
import torch

from caboose.observe.step_vector import StepVector
from caboose.tensors.readable import own_part
from caboose_wire import Batch

MAX_DEPTH = 4
MAX_TENSORS = 16
"""Of a batch, that are looked at for one of floating point."""
RECENT, SMALL = 64, 16_384
"""Inputs that are kept alive for a few steps, and the most elements that one of them has: 4 MB in all."""


BatchPlace = tuple[int, int, Sequence[int]]
"""Index, epoch and shape of a batch; the index is below 0 where no loader is watched."""


def describe(place: BatchPlace | None) -> Batch | None:
    """The batch as it is reported; called on the sender's thread."""
    if place is None:
        return None
    index, epoch, shape = place
    return Batch(index=None if index < 0 else index, epoch=max(0, epoch), shape=tuple(shape[:16]))


class BatchCounter:
    """Counts the batches, and keeps a weak reference to the last one in case its step goes wrong."""

    def __init__(self) -> None:
        self.index = -1
        self.epoch = -1
        self.held: weakref.ref[torch.Tensor] | None = None
        """The last batch's first tensor, while something else keeps it alive."""
        self._shape: Sequence[int] = ()
        self._input: weakref.ref[torch.Tensor] | None = None
        """What the model was called with last."""
        self._input_shape: Sequence[int] = ()
        """Of what the model was called with in this step, where that is sampled."""
        self._recent: deque[torch.Tensor] = deque(maxlen=RECENT)
        """Small inputs on the host, kept until the reports of their steps are made, which go many to a message."""

    def begin_epoch(self, number: int | None = None) -> None:
        """The loader starts over; `number` is that of the epoch, if it is known."""
        self.epoch = self.epoch + 1 if number is None else number

    def see(self, batch: Any) -> None:
        """The loader returned a batch."""
        self.index += 1
        tensor = _first_tensor(batch)
        self._shape = tensor.shape if tensor is not None and not tensor.is_nested else ()
        self.held = weakref.ref(tensor) if tensor is not None else None

    def see_input(self, args: Any) -> None:
        """The model is called in training; what it is called with may be the loader's batch, changed by the loop."""
        first = args[0] if type(args) is tuple and args else None
        if not isinstance(first, torch.Tensor):  # as a framework calls it: with names, or with the whole batch
            first = _first_float(args)
        if first is None or not first.is_floating_point():
            self._input = None
            return
        self._input = weakref.ref(first)
        if first.is_cpu and first.numel() <= SMALL and not first.requires_grad:
            self._recent.append(first)

    def note_shape(self, args: Any) -> None:
        """The model is called in training in a sampled step: the first dimension of its input is the batch."""
        first = _first_tensor(args)
        self._input_shape = first.shape if first is not None and not first.is_nested else ()

    def reachable(self) -> "weakref.ref[torch.Tensor] | None":
        """The step's input, while it exists: what the model was called with, else the loader's batch."""
        return self.held if self._input is None else self._input

    def place(self) -> "BatchPlace | None":
        """Which batch the last one was; without a watched loader, what is known of the model's input, or None."""
        if self.index >= 0:
            return self.index, self.epoch, self._shape
        shape = self._input_shape
        if not shape:
            return None
        self._input_shape = ()
        return -1, 0, shape

    def add_to(self, vector: StepVector) -> None:
        """Adds the range of the model's input, or of the last batch, and the number of its bad elements."""
        tensor = None if self._input is None else self._input()
        if tensor is None and self.held is not None:
            tensor = self.held()
        found = extent(tensor) if tensor is not None else None
        if found is not None:
            for name, value in zip(("batch_low", "batch_high", "batch_bad", "batch_mean"), found, strict=True):
                vector.add_scalar(name, value)


def after_an_incident(batch: Batch | None, held: "weakref.ref[torch.Tensor] | None") -> Batch | None:
    """The batch with its range and bad elements, if it still exists; on the sender's thread, so it may wait."""
    tensor = held() if held is not None else None
    if tensor is None or (batch is not None and batch.num_bad is not None):
        return batch
    found = extent(tensor)
    if found is None:
        return batch
    low, high, bad, mean = found
    known = Batch(index=None, shape=tuple(tensor.shape[:16])) if batch is None else batch
    return msgspec.structs.replace(known, num_bad=int(bad), lowest=float(low), highest=float(high), mean=float(mean))


def extent(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor] | None:
    """Lowest and highest element of this rank's part, how many are not finite, and their mean; None if unreadable."""
    mine = own_part(tensor, "a batch")
    if mine is None or not mine.numel():
        return None
    low, high = torch.aminmax(mine)
    bad = (~torch.isfinite(mine)).sum() if mine.is_floating_point() else torch.zeros((), device=mine.device)
    return low, high, bad, mine.mean(dtype=torch.float32)


def _first_float(batch: Any) -> torch.Tensor | None:
    return next((tensor for tensor in islice(_tensors(batch), MAX_TENSORS) if tensor.is_floating_point()), None)


def _first_tensor(batch: Any) -> torch.Tensor | None:
    return next(_tensors(batch), None)


def _tensors(batch: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """The tensors of a batch, in their order."""
    if isinstance(batch, torch.Tensor):
        yield batch
    elif depth < MAX_DEPTH and isinstance(batch, dict | tuple | list):
        for part in batch.values() if isinstance(batch, dict) else batch:
            yield from _tensors(part, depth + 1)
