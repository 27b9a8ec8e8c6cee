"""Separates nested state into tensors and the rest, and joins them again, without pickle.

Design
------
State is dictionaries, lists and plain values with tensors inside. With every tensor replaced by a `Leaf` (its name),
the rest is small: it is copied deeply and kept in the snapshot as it is; the tensors' bytes go to the slot. A tensor
that wraps others (a DTensor, a quantized one) is taken as its inner tensors: for a DTensor this rank's shard, so no
collective is needed.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Leaf:
    """Replaces a tensor."""

    name: str


@dataclass(slots=True)
class Parts:
    """The tensors of some state, by their place in it."""

    tensors: Tensors = field(default_factory=dict)
    """Plain tensors, detached from autograd."""
    objects: Tensors = field(default_factory=dict)
    """The tensors as they were found, including those that wrap others."""
    loose: set[str] = field(default_factory=set)
    """Plain tensors that are not written in place but passed as new ones."""

    def add(self, name: str, tensor: torch.Tensor, *, is_loose: bool = False) -> None:
        """Takes a tensor, or what it wraps."""
        self.objects[name] = tensor
        inner = inner_tensors(tensor, name)
        if is_loose and name in inner:
            self.loose.add(name)
            inner = {name: tensor.data}
        self.tensors.update(inner)


def take_apart(tree: Any, name: str, parts: Parts, *, is_loose: bool = False) -> Any:
    """The tree with a `Leaf` for each tensor, which goes into `parts`."""
    if isinstance(tree, torch.Tensor):
        parts.add(name, tree, is_loose=is_loose)
        return Leaf(name)
    if isinstance(tree, Mapping):
        return {key: take_apart(value, f"{name}/{key}", parts, is_loose=is_loose) for key, value in tree.items()}
    if type(tree) in (list, tuple):  # not their subclasses, whose constructors may differ
        # Lists change: the tensor at a place need not be the one that the snapshot has there.
        return type(tree)([take_apart(value, f"{name}/{i}", parts, is_loose=True) for i, value in enumerate(tree)])
    if tree is None or isinstance(tree, bool | int | float | str):
        return tree
    return copy.deepcopy(tree)


def put_together(tree: Any, tensor: Callable[[Leaf], torch.Tensor]) -> Any:
    """The joined tree, with a tensor for each `Leaf`; shares nothing with the given tree."""
    if isinstance(tree, Leaf):
        return tensor(tree)
    if isinstance(tree, dict):
        return {key: put_together(value, tensor) for key, value in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)([put_together(value, tensor) for value in tree])
    return copy.deepcopy(tree)


def inner_tensors(tensor: torch.Tensor, name: str) -> Tensors:
    """The plain tensors that hold this one's data on this rank; under its own name if it is plain itself."""
    wrapper: Any = tensor
    if is_traceable_wrapper_subclass(wrapper):
        attributes, _ = wrapper.__tensor_flatten__()
        found: Tensors = {}
        for attribute in attributes:
            inner = getattr(wrapper, attribute)
            if isinstance(inner, torch.Tensor):  # a DTensor names its mesh as well
                found.update(inner_tensors(inner, f"{name}/{attribute}"))
        return found
    if tensor.is_sparse or tensor.layout is not torch.strided or tensor.is_quantized:
        raise ValueError(f"{name} is a {tensor.layout} tensor: only dense ones can be kept in a snapshot")
    if tensor.device.type == "meta":
        return {}
    return {name: _dense(tensor.data)}


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """Without dimensions of stride 0, whose elements are one."""
    for dimension, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if stride == 0 and size > 1:
            tensor = tensor.narrow(dimension, 0, 1)
    return tensor
