"""How a parameter is placed across the ranks, and this rank's part of it.

Design
------
Only known placements are summed. A plain tensor in a model without sharding is complete on every rank. A DTensor is
known if every dimension of its mesh shards or replicates it and the mesh spans the whole job: then the squares over all
ranks, divided by the number of copies of each shard, are those of the whole. FSDP1 keeps shards of flat buffers; its
handles give them, and the number of ranks. Everything else (a partial tensor, a mesh over part of the job, a plain
tensor in a sharded model) is `unknown`: reported as blind, never summed. So is a parameter that DDP ignores, or that
lies outside of it: each rank has its own. Gradients have placements of their own (see `gradient_factor`).
"""

import math
import sys
from dataclasses import dataclass
from typing import Any

import torch

from caboose.tensors.engines import num_elements, why_gradients_are_hidden
from caboose_wire.fields import Placement

SHARDS = ("Shard", "_StridedShard")
"""The second is of a dimension that two dimensions of the mesh shard, as with FSDP2 around tensor parallel layers."""
FSDP1_MODULE = "torch.distributed.fsdp.fully_sharded_data_parallel"


@dataclass(frozen=True, slots=True)
class ParameterPlacement:
    """The placement of one parameter."""

    placement: Placement
    replicas: int
    """The number of ranks that hold each piece of it."""
    numel: int
    """Elements of the whole parameter."""


class Placements:
    """The placements of one model's parameters."""

    def __init__(self, model: torch.nn.Module, world: int) -> None:
        self._world = world
        self._ignored = _ignored_by_ddp(model)
        self._flat = _fsdp1_parameters(model, world)
        self.why_hidden = why_gradients_are_hidden(model)
        """Why no gradient can be read, where an engine keeps them all; else empty."""
        self._is_sharded = bool(self._flat) or any(_mesh(p) is not None for p in model.parameters())

    def of(self, parameter: torch.Tensor) -> ParameterPlacement:
        if id(parameter) in self._ignored or self.why_hidden:
            return ParameterPlacement("unknown", 1, num_elements(parameter))
        flat = self._flat.get(id(parameter))
        if flat is not None:
            return flat
        mesh = _mesh(parameter)
        if mesh is not None:
            return _of_dtensor(parameter, mesh, self._world)
        is_plain = type(parameter) in (torch.nn.Parameter, torch.Tensor)
        if self._is_sharded or not is_plain:
            return ParameterPlacement("unknown", 1, parameter.numel())
        return ParameterPlacement("replicated", self._world, parameter.numel())

    def is_ignored(self, parameter: torch.Tensor) -> bool:
        """Whether DDP ignores it: neither it nor its gradient is meant to be equal on all ranks."""
        return id(parameter) in self._ignored


def in_ddp(model: torch.nn.Module) -> bool:
    """Whether DDP reduces the gradients of the model, or of parts of it: it may lie inside other modules."""
    return any(isinstance(m, torch.nn.parallel.DistributedDataParallel) for m in model.modules())


def _ignored_by_ddp(model: torch.nn.Module) -> frozenset[int]:
    """What is trained and DDP does not reduce: what it is given to ignore, and what lies outside of it."""
    wrappers = [m for m in model.modules() if isinstance(m, torch.nn.parallel.DistributedDataParallel)]
    if not wrappers:
        return frozenset()
    ignored: set[int] = set()
    reduced: set[int] = set()
    for wrapper in wrappers:
        for name, p in wrapper.module.named_parameters():
            (ignored if name in wrapper.parameters_to_ignore else reduced).add(id(p))
    outside = {id(p) for p in model.parameters() if p.requires_grad} - reduced
    return frozenset(ignored | outside)


def without_compile(model: torch.nn.Module) -> torch.nn.Module:
    """The module inside `torch.compile`'s wrapper, such as DDP."""
    while isinstance(inner := getattr(model, "_orig_mod", None), torch.nn.Module):
        model = inner
    return model


def own(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a gradient or a parameter, complex numbers as pairs of real ones; never a collective."""
    local: torch.Tensor | None = getattr(tensor, "_local_tensor", None)
    part = tensor if local is None else local
    return torch.view_as_real(part) if part.is_complex() else part


def gradient_factor(parameter: torch.Tensor, gradient: torch.Tensor, world: int) -> float | None:
    """What the norm of this rank's part of a gradient is multiplied by to be one of its parameter's placement.

    A gradient may be placed in another way than its parameter: under tensor parallelism that of a sharded embedding is
    complete on every rank, and that of a norm is a sum that the optimizer's first operation completes (`Partial`). None
    where the parts do not give the norm of the whole.
    """
    placed, own_mesh = _mesh(gradient), _mesh(parameter)
    if own_mesh is None or getattr(gradient, "placements", None) == getattr(parameter, "placements", None):
        return 1.0
    if placed is None:
        return None
    mine, its = _of_dtensor(parameter, own_mesh, world), _of_dtensor(gradient, placed, world)
    if its.placement == "unknown" or (mine.placement, its.placement) == ("replicated", "sharded"):
        return None
    return 1.0 if mine.placement == "replicated" else math.sqrt(mine.replicas / its.replicas)


def _mesh(parameter: torch.Tensor) -> Any:
    return getattr(parameter, "device_mesh", None)


def _of_dtensor(parameter: Any, mesh: Any, world: int) -> ParameterPlacement:
    replicas = 1
    is_sharded = False
    is_understood = mesh.size() == world
    for dimension, how in enumerate(parameter.placements):
        kind = type(how).__name__
        is_sharded |= kind in SHARDS
        is_understood &= kind in SHARDS or kind == "Replicate"
        if kind == "Replicate":
            replicas *= mesh.size(dimension)
    if not is_understood:
        return ParameterPlacement("unknown", 1, parameter.numel())
    return ParameterPlacement("sharded" if is_sharded else "replicated", replicas, parameter.numel())


def _fsdp1_parameters(model: torch.nn.Module, world: int) -> dict[int, ParameterPlacement]:
    """FSDP1's parameters: with use_orig_params each one's shard, else the flat buffer of each unit."""
    fsdp = sys.modules.get(FSDP1_MODULE)
    if fsdp is None:
        return {}
    found: dict[int, ParameterPlacement] = {}
    for unit in fsdp.FullyShardedDataParallel.fsdp_modules(model):
        handle = unit._handle  # noqa: SLF001 - FSDP1 has no public way
        if handle is None:
            continue
        shards = handle.process_group.size() if handle.uses_sharded_strategy else 1
        how: Placement = "sharded" if shards > 1 else "replicated"
        flat = handle.flat_param
        if handle._use_orig_params:
            for parameter, numel in zip(flat._params, flat._numels, strict=False):  # noqa: SLF001 - FSDP1 has no public way
                found[id(parameter)] = ParameterPlacement(how, max(1, world // shards), int(numel))
        else:
            found[id(flat)] = ParameterPlacement(
                how, max(1, world // shards), int(flat._unpadded_unsharded_size.numel())
            )
    return found
