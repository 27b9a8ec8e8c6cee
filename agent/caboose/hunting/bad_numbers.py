"""Finds numbers that are not finite before anything is run: in inputs, weights and optimizer states."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from caboose.observe.layers import plain_name
from caboose.tensors.placement import own
from caboose.trials.batches import tensors as named_tensors

MAX_ROWS = 32
STATISTICS = ("running_mean", "running_var")
"""Buffers that are finite in a healthy model; others (masks) are often infinite by design: there only NaN is bad."""


@dataclass(frozen=True, slots=True)
class BadTensor:
    """A tensor with bad elements."""

    name: str
    num_bad: int
    rows: tuple[int, ...] = ()
    """Rows of its first dimension, the first few."""
    num_rows: int = 0
    """How many rows are bad."""


@dataclass(frozen=True, slots=True)
class Weights:
    """What is bad in parameters, buffers and optimizer states."""

    parameters: tuple[BadTensor, ...]
    num_parameters: int
    buffers: tuple[BadTensor, ...]
    states: tuple[BadTensor, ...]

    @property
    def are_spoiled(self) -> bool:
        """Whether so many are bad that an update with a bad gradient must have made them so."""
        return len(self.parameters) > max(1, self.num_parameters // 2)


def is_number(tensor: torch.Tensor) -> bool:
    """Whether its elements could be bad, and can be read."""
    return (
        (tensor.is_floating_point() or tensor.is_complex())
        and tensor.layout is torch.strided
        and tensor.device.type != "meta"
        and tensor.numel() > 0
    )


def is_bad(tensor: torch.Tensor) -> bool:
    """Whether any element is not finite."""
    return is_number(tensor) and not bool(torch.isfinite(tensor).all())


def bad_rows(bad: torch.Tensor) -> tuple[int, ...]:
    """The rows of the first dimension in which any element is marked."""
    marked = bad.reshape(bad.shape[0], -1).any(dim=1)
    rows: list[int] = torch.nonzero(marked).flatten().tolist()
    return tuple(rows)


@torch.no_grad()
def at_inputs(tree: Any, name: str) -> list[BadTensor]:
    """Inputs that hold NaN or infinity; one with minus infinity in every sample, and nothing else, is a mask."""
    found = []
    for place, tensor in named_tensors(tree, name):
        if not is_bad(tensor):
            continue
        bad = ~torch.isfinite(tensor)
        rows = bad_rows(bad) if tensor.dim() else ()
        is_mask = bool(torch.isneginf(tensor[bad]).all()) if tensor.is_floating_point() else False
        if is_mask and (not tensor.dim() or len(rows) == tensor.shape[0]):
            continue
        found.append(BadTensor(place or name, int(bad.sum()), rows[:MAX_ROWS], len(rows)))
    return found


@torch.no_grad()
def at_weights(model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> Weights:
    """This rank's part of everything that training changes; nothing is communicated."""
    named = list(model.named_parameters())
    names = {id(parameter): plain_name(name) for name, parameter in named}
    return Weights(
        tuple(_bad((plain_name(name), own(parameter)) for name, parameter in named)),
        len(named),
        tuple(_bad_buffers(model)),
        tuple(_bad(_states(optimizers, names))),
    )


def _bad(named: Iterable[tuple[str, torch.Tensor]]) -> Iterator[BadTensor]:
    for name, tensor in named:
        if is_bad(tensor):
            yield BadTensor(name, int((~torch.isfinite(tensor)).sum()))


def _bad_buffers(model: torch.nn.Module) -> Iterator[BadTensor]:
    for name, buffer in model.named_buffers():
        if not is_bad(buffer):
            continue
        is_statistic = name.rpartition(".")[2] in STATISTICS
        num = int((~torch.isfinite(buffer) if is_statistic else torch.isnan(buffer)).sum())
        if num:
            yield BadTensor(plain_name(name), num)


def _states(optimizers: Sequence[torch.optim.Optimizer], names: dict[int, str]) -> Iterator[tuple[str, torch.Tensor]]:
    for optimizer in optimizers:
        for parameter, state in optimizer.state.items():
            for key, value in state.items() if isinstance(state, dict) else ():
                if isinstance(value, torch.Tensor):
                    yield f"{key} of {names.get(id(parameter), 'a parameter')}", own(value)
