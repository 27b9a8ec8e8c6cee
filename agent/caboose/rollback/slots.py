"""A slot: the host memory of one snapshot.

Design
------
One flat buffer holds all tensors of a snapshot, each at a multiple of 64 bytes, in the order in which they are checked:
so a checksum is one pass over memory, and a slot is reused without an allocation. A dense tensor keeps its strides, so
that copying is a plain copy of memory. Fresh memory costs five times a copy (every page is a fault), so buffers are
touched when they are made, off the training thread (see `ring`).

On an accelerator the buffer is pinned and copies run on their own stream (see `device_copy`).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import torch

from caboose.rollback.checksum import Region, kind_of
from caboose.rollback.errors import RollbackFailed
from caboose.rollback.training_state import Rest
from caboose.tensors.tensor_tree import Parts, Tensors

ALIGNMENT = 64

Health = Literal["", "unchecked", "not finite", "damaged"]


@dataclass(frozen=True, slots=True)
class Spec:
    """One tensor's place in a slot."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    offset: int
    is_loose: bool
    is_inner: bool
    """Whether another tensor wraps it, so that it cannot be made again alone."""


class Layout:
    """The place of each tensor in a slot; the same for all slots while the state has the same tensors."""

    def __init__(self, parts: Parts, names: Iterable[str], is_checked: Callable[[str], bool]) -> None:
        kinds = {
            name: kind_of(parts.tensors[name].dtype) if name not in parts.loose and is_checked(name) else ""
            for name in names
        }
        self.specs: dict[str, Spec] = {}
        self.regions: list[Region] = []
        offset = 0
        for kind in sorted(set(kinds.values())):
            start = offset
            for name in (name for name, its in kinds.items() if its == kind):
                tensor = parts.tensors[name]
                self.specs[name] = Spec(
                    shape=tensor.shape,
                    stride=_dense_stride(tensor),
                    dtype=tensor.dtype,
                    device=tensor.device,
                    offset=offset,
                    is_loose=name in parts.loose,
                    is_inner=name not in parts.objects and not name.startswith(("parameter/", "buffer/")),
                )
                offset += padded(tensor.nbytes)
            if offset > start:
                self.regions.append(Region(start, offset, kind))
        self.num_bytes = offset

    def fits(self, tensors: Tensors) -> bool:
        """Whether these tensors are those the layout was made for."""
        if tensors.keys() != self.specs.keys():
            return False
        return all(
            spec.shape == tensors[name].shape and spec.dtype == tensors[name].dtype for name, spec in self.specs.items()
        )

    def targets(self, live: Parts, is_kept: Callable[[str], bool]) -> tuple[Tensors, Tensors]:
        """Where the bytes go: plain tensors to be written, and the objects that hold them.

        Raises before anything is touched if a tensor can be neither written nor made.
        """
        targets: Tensors = {}
        objects = dict(live.objects)
        for name, spec in self.specs.items():
            if is_kept(name):
                continue
            found = live.tensors.get(name)
            is_usable = found is not None and found.shape == spec.shape and found.dtype == spec.dtype
            if is_usable and found is not None and not spec.is_loose:
                targets[name] = found
            elif spec.is_inner or name.startswith("parameter/"):
                raise RollbackFailed(f"{name} was kept in the snapshot and has no counterpart in the run now")
            else:
                made = torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype, device=spec.device)
                targets[name] = objects[name] = made
        return targets, objects


class Slot:
    """One snapshot; its buffer outlives it."""

    def __init__(self, buffer: torch.Tensor) -> None:
        self.buffer = buffer
        self._layout: Layout | None = None
        self._views: Tensors = {}
        self._rest: Rest | None = None
        self._whole: Layout | None = None
        self.owners: dict[str, int] = {}
        """The owner of each tensor, with shared snapshots."""
        self.step = -1
        self.model_step = -1
        self.lr_scale = 1.0
        """The scale of the learning rates then."""
        self.time = 0.0
        """Unix time at which it was taken."""
        self.health: Health = "unchecked"
        self.checksum = 0
        self.num_uses = 0
        """How often it was filled; results about an earlier filling are ignored."""

    @property
    def layout(self) -> Layout:
        """The layout of its tensors."""
        assert self._layout is not None, "a slot is laid out before it is filled"
        return self._layout

    @property
    def whole(self) -> Layout:
        """The layout of all tensors of the snapshot, including those that other ranks keep."""
        assert self._whole is not None, "only filled slots are on the shelf"
        return self._whole

    @property
    def rest(self) -> Rest:
        """The state without its tensors."""
        assert self._rest is not None, "only filled slots are on the shelf"
        return self._rest

    def fill(self, rest: Rest, whole: Layout, owners: dict[str, int]) -> None:
        """The buffer has been written, and is not checked yet."""
        self._rest, self._whole, self.owners = rest, whole, owners
        self.health = "unchecked"

    def lay_out(self, layout: Layout) -> None:
        """Makes the buffer ready for tensors of this layout."""
        if layout is self._layout:
            return
        if self.buffer.numel() < layout.num_bytes:
            self.buffer = new_buffer(layout.num_bytes, is_pinned=self.buffer.is_pinned())
        elif self._layout is not None:
            self.buffer.zero_()  # the gaps between tensors are checked as well
        self._layout = layout
        self._views = {name: view(self.buffer, spec, spec.offset) for name, spec in layout.specs.items()}

    def views(self, names: Iterable[str]) -> list[torch.Tensor]:
        """Tensors over the buffer, in this order."""
        return [self._views[name] for name in names]

    @property
    def names(self) -> Iterable[str]:
        """Of all tensors in it."""
        return self.layout.specs.keys()


def new_buffer(num_bytes: int, *, is_pinned: bool) -> torch.Tensor:
    """Host memory, touched and zero."""
    return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=is_pinned).zero_()


def view(buffer: torch.Tensor, spec: Spec, start: int) -> torch.Tensor:
    """A tensor of this kind over the bytes that begin at `start`."""
    num_bytes = spec.shape.numel() * spec.dtype.itemsize
    return buffer[start : start + num_bytes].view(spec.dtype).as_strided(spec.shape, spec.stride)


def padded(num_bytes: int) -> int:
    """What a tensor of this size takes of a buffer."""
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


def _dense_stride(tensor: torch.Tensor) -> tuple[int, ...]:
    """The tensor's own strides if it fills its memory, else those of a contiguous one."""
    return torch.empty_like(tensor, device="meta").stride()
