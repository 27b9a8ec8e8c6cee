"""Everything of a run that a checkpoint holds: captured at a step boundary, and restored.

Design
------
Model and optimizer tensors go to torch.distributed.checkpoint, which divides replicated ones among the ranks and
handles sharded ones. The other *parts* (scheduler, scaler, extras, and each rank's random numbers) have a state of
plain values and a few tensors. Whether a part is the same on all ranks is found by digest at each save: what is equal
is written once, what differs is written by each rank and ties the checkpoint to this number of ranks.

Buffers of replicas (batch norm's averages) may differ for good reasons: rank 0's go with the model, and where they
differ each rank keeps its own beside them.
"""

import json
import random
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.distributed.checkpoint.staging import BlockingAsyncStager
from torch.distributed.checkpoint.state_dict import get_model_state_dict

from caboose.checkpoints import plain
from caboose.checkpoints.optimizer_state import OptimizerParts
from caboose.observe.layers import plain_name
from caboose.tensors.shards import is_fsdp1

RANDOM = "random numbers"
BUFFERS = "buffers"


@dataclass
class ExtraState:
    """The state of one object beside model and optimizers."""

    tree: plain.Tree
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)

    def digest(self) -> int:
        """Equal on two ranks if the state is."""
        value = zlib.crc32(json.dumps(self.tree, sort_keys=True).encode())
        for key, tensor in sorted(self.tensors.items()):
            value = zlib.crc32(f"{key}{tensor.dtype}{tuple(tensor.shape)}".encode(), value)
            value = zlib.crc32(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data, value)
        return value


@dataclass
class Captured:
    """A run's state at one boundary, on this rank."""

    tensors: dict[str, torch.Tensor]
    """For torch.distributed.checkpoint: sharded or the same on all ranks."""
    model: plain.Tree
    optimizers: plain.Tree
    parts: dict[str, ExtraState]


class RunState:
    """The objects whose state is saved, by reference."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        schedulers: Sequence[Any] = (),
        scaler: Any = None,
        extra: Sequence[Any] | Mapping[str, Any] = (),
    ) -> None:
        self.model = model
        self.is_fsdp1 = is_fsdp1(model)
        self.optimizers = OptimizerParts(model, optimizers)
        named = extra.items() if isinstance(extra, Mapping) else ((str(i), thing) for i, thing in enumerate(extra))
        names = ["scheduler"] if len(schedulers) == 1 else [f"scheduler.{number}" for number in range(len(schedulers))]
        given = {**dict(zip(names, schedulers, strict=True)), "scaler": scaler}
        given |= {f"extra.{name}": thing for name, thing in named}
        self.things = {name: thing for name, thing in given.items() if thing is not None}
        for name, thing in self.things.items():
            if not hasattr(thing, "state_dict") or not hasattr(thing, "load_state_dict"):
                raise TypeError(
                    f"{name} is a {type(thing).__name__}; what is saved needs state_dict() and load_state_dict()"
                )

    def model_tensors(self) -> dict[str, Any]:
        """The model's state dict with names without wrappers; tensors share memory with the model."""
        return get_model_state_dict(self.model)

    def capture(self, rank: int, *, is_copied: bool) -> Captured:
        """Captures everything; `is_copied` if training continues before it is written."""
        tensors: dict[str, torch.Tensor] = {}
        state = self.model_tensors()
        buffers = {key: state[key] for key in self._buffers(state)}
        model = {key: plain.encode(value, f"model.{key}", tensors) for key, value in state.items()}
        if rank != 0:  # torch would take a replicated tensor from any rank; for buffers, rank 0's count
            for key in buffers:
                tensors.pop(f"model.{key}", None)
        optimizers = self.optimizers.capture(tensors)
        parts = {name: self._part(name, thing.state_dict(), tensors) for name, thing in self.things.items()}
        parts[BUFFERS] = self._part(BUFFERS, buffers, tensors)
        parts[RANDOM] = self._part(RANDOM, random_state(), tensors)
        if is_copied:
            tensors = copied(tensors)
            for part in parts.values():
                part.tensors = {key: tensor.detach().clone() for key, tensor in part.tensors.items()}
        return Captured(tensors, model, optimizers, parts)

    def _buffers(self, state: Mapping[str, Any]) -> list[str]:
        names = {plain_name(name) for name, _ in self.model.named_buffers()}
        return [
            key
            for key, value in state.items()
            if plain_name(key) in names and isinstance(value, torch.Tensor) and not plain.is_sharded(value)
        ]

    def _part(self, name: str, state: Any, tensors: dict[str, torch.Tensor]) -> ExtraState:
        found: dict[str, torch.Tensor] = {}
        tree = plain.encode(state, f"part.{name}", found)
        tensors.update({key: tensor for key, tensor in found.items() if plain.is_sharded(tensor)})
        return ExtraState(tree, {key: tensor for key, tensor in found.items() if not plain.is_sharded(tensor)})


def copied(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copies of the tensors on the host."""
    staged: dict[str, torch.Tensor] = BlockingAsyncStager(cache_staged_state_dict=False).stage(tensors)
    return staged


def random_state() -> dict[str, Any]:
    """The random states of this process: Python's, numpy's, torch's on the host and the current device."""
    state = {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state()}
    device = torch.accelerator.current_accelerator(check_available=True)
    if device is not None:
        state["device"] = torch.get_device_module(device).get_rng_state()
    return state


def set_random_state(state: Mapping[str, Any]) -> None:
    """Restores the random states."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    device = torch.accelerator.current_accelerator(check_available=True)
    if device is not None and "device" in state:
        torch.get_device_module(device).set_rng_state(state["device"])
