"""This rank's part of a model's parameters.

Design
------
FSDP swaps a module's parameters during a step: a shard at the step's end, the whole in between, and the whole still
after an evaluation. The sharded parameter exists throughout, always the same object, and the optimizer works on it. So
the parameters are looked up once, at attach, and are then read at any boundary without resharding. That matters: a rank
that reshards gathers again in its next forward, and would gather alone if the others took no snapshot.

Only the objects are kept, never their memory: after `parameter.data = ...` a copy of the old memory would be useless.
Parameters that are added to an optimizer later are included when they are seen.

A rollback is different: all ranks do it at one boundary, and a gathered parameter would be stale. So everything is
resharded first, on all ranks.
"""

import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from caboose.tensors.placement import FSDP1_MODULE
from caboose.tensors.tensor_tree import Tensors, inner_tensors


class OwnParameters:
    """This rank's part of every parameter of the model and of the optimizers."""

    def __init__(self, model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        reshard(model)
        self._handles = fsdp1_handles(model)
        self._optimizers = list(optimizers)
        self._parameters: dict[str, torch.Tensor] = {}
        self._seen: set[int] = set()
        for handle in self._handles:
            self._seen.add(id(handle.flat_param))
            self._seen.update(id(parameter) for parameter in handle.flat_param._params or ())  # noqa: SLF001 - FSDP1 has no public way
        self._take_in(model.named_parameters())

    def _take_in(self, named: Iterable[tuple[str, torch.Tensor]]) -> None:
        for name, parameter in named:
            if id(parameter) not in self._seen:
                self._seen.add(id(parameter))
                self._parameters[name] = parameter

    def tensors(self) -> Tensors:
        """By name, as plain memory."""
        self._take_in(_held(self._optimizers))
        found: Tensors = {}
        for name, parameter in self._parameters.items():
            found.update(inner_tensors(parameter, f"parameter/{name}"))
        for number, handle in enumerate(self._handles):
            # FSDP1 places its shards in the first forward; until then the parameter is the shard itself.
            flat = handle.flat_param
            found[f"parameter/unit{number}"] = getattr(flat, "_local_shard", flat).data
        return found


def reshard(model: torch.nn.Module) -> None:
    """Reshards every parameter; communicates nothing, and does nothing where it is sharded already."""
    module: Any
    for module in model.modules():
        if hasattr(module, "_get_fsdp_state") and hasattr(module, "reshard"):  # FSDP2
            module.reshard()
    for handle in fsdp1_handles(model):
        if hasattr(handle.flat_param, "_local_shard") and not handle.is_sharded(handle.flat_param):
            handle.reshard(True)
            handle.post_reshard()
            handle._prefetched = False  # noqa: SLF001 - FSDP1 has no public way


def is_fsdp(model: torch.nn.Module) -> bool:
    """Whether any parameter of the model is sharded, or could be."""
    return bool(fsdp1_handles(model)) or any(hasattr(parameter, "device_mesh") for parameter in model.parameters())


def _held(optimizers: Iterable[torch.optim.Optimizer]) -> Iterator[tuple[str, torch.Tensor]]:
    for number, optimizer in enumerate(optimizers):
        for place, group in enumerate(optimizer.param_groups):
            for index, parameter in enumerate(group["params"]):
                yield f"optimizer{number}.{place}.{index}", parameter


def fsdp1_handles(model: torch.nn.Module) -> list[Any]:
    """FSDP1's handles of its flat parameters; none where the model is not wrapped by it."""
    fsdp = sys.modules.get(FSDP1_MODULE)
    if fsdp is None:
        return []
    units = fsdp.FullyShardedDataParallel.fsdp_modules(model)
    return [unit._handle for unit in units if unit._handle is not None]  # noqa: SLF001 - FSDP1 has no public way


def is_fsdp1(model: torch.nn.Module) -> bool:
    """Whether FSDP1 wraps the model or a part of it."""
    fsdp = sys.modules.get(FSDP1_MODULE)
    return fsdp is not None and bool(fsdp.FullyShardedDataParallel.fsdp_modules(model))


@contextmanager
def quiet_fsdp1(model: torch.nn.Module) -> Iterator[None]:
    """Ignores FSDP1's warnings about its deprecation. On the training thread only: filters are process-wide."""
    if not is_fsdp1(model):
        yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
