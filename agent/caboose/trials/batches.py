"""The inputs, targets and samples of a batch; and a copy of it that a loss may change.

Design
------
Batches and samples are trees of mappings, lists, tuples and objects of user classes (dataclasses, graphs) with tensors
and plain values as leaves. An object counts as the mapping of its attributes. Anything else cannot be compared, so it
has no digest.
"""

import copy
import dataclasses
import datetime
import enum
import hashlib
import pathlib
import uuid
import weakref
from collections.abc import Callable, Iterator, Mapping, Set
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

TARGET_KEYS = ("labels", "label", "targets", "target", "y")
Split = Callable[[Any], tuple[Any, Any]]
PLAIN = (str, bytes, int, float, complex, enum.Enum, datetime.date, datetime.timedelta, pathlib.PurePath, uuid.UUID)
ASIDE = (type, ModuleType, FunctionType, MethodType, BuiltinFunctionType, weakref.ref, torch.dtype, torch.device)
"""Attributes that are no part of the sample."""
MAX_DEPTH = 12


class Unreadable(Exception):
    """A sample that cannot be compared; the message names its type."""


def attributes(thing: Any) -> dict[str, Any] | None:
    """The attributes of an object of a user's class; None for anything else."""
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        return {field.name: getattr(thing, field.name, None) for field in dataclasses.fields(thing)}
    if isinstance(thing, (*PLAIN, *ASIDE, torch.Tensor, np.ndarray, Mapping, tuple, list, Set, torch.nn.Module)):
        return None
    found = getattr(thing, "__dict__", None)
    return dict(found) if found and not hasattr(thing, "tobytes") else None


def fresh(batch: Any) -> Any:
    """A copy of the batch: a loss may pop labels or scale inputs in place, and the batch is used again."""
    if isinstance(batch, torch.Tensor):
        return batch.detach().clone()
    if isinstance(batch, np.ndarray):
        return batch.copy()
    if isinstance(batch, dict):
        return {key: fresh(value) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*[fresh(value) for value in batch])
    if type(batch) in (list, tuple):
        return type(batch)([fresh(value) for value in batch])
    if isinstance(batch, Mapping) and hasattr(batch, "copy"):  # as transformers' BatchEncoding
        return batch.copy()
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        made = copy.copy(batch)
        for name, value in (attributes(batch) or {}).items():
            object.__setattr__(made, name, fresh(value))
        return made
    return batch


def on_device(batch: Any, device: torch.device) -> Any:
    """The batch with its tensors on a device."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {key: on_device(value, device) for key, value in batch.items()}
    if type(batch) in (list, tuple):
        return type(batch)([on_device(value, device) for value in batch])
    return batch


def parted(batch: Any, split: Split | None = None) -> tuple[Any, torch.Tensor | None]:
    """Inputs and targets: by `split`, of a pair, or by the usual keys; targets are None where none are found."""
    if split is not None:
        inputs, targets = split(batch)
        return inputs, targets if isinstance(targets, torch.Tensor) else _as_tensor(targets)
    if isinstance(batch, Mapping):
        for key in TARGET_KEYS:
            targets = batch.get(key)
            if isinstance(targets, torch.Tensor):
                return {name: value for name, value in batch.items() if name != key}, targets
        return batch, None
    if isinstance(batch, tuple | list) and len(batch) == 2 and not _are_objects(batch):
        return batch[0], _as_tensor(batch[1])
    held = attributes(batch)
    if held is not None:
        inputs, targets = parted(held)
        return (inputs, targets) if targets is not None else (batch, None)
    return batch, None


def tensors(tree: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """All tensors of a batch, with a name where it has one."""
    if isinstance(tree, torch.Tensor):
        yield name, tree
    elif isinstance(tree, np.ndarray) and tree.dtype.kind in "biuf":
        yield name, torch.from_numpy(np.array(tree))
    elif isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from tensors(value, f"{name}.{key}".lstrip("."))
    elif isinstance(tree, tuple | list):
        for place, value in enumerate(tree):
            yield from tensors(value, f"{name}[{place}]" if len(tree) > 1 else name)
    elif name.count(".") < MAX_DEPTH:
        for key, value in (attributes(tree) or {}).items():
            yield from tensors(value, f"{name}.{key}".lstrip("."))


def num_samples(batch: Any) -> int:
    """The length of the first dimension of its first tensor; 0 if there is none."""
    for _, tensor in tensors(batch):
        return tensor.shape[0] if tensor.dim() else 1
    return 0


def doubled(batch: Any) -> Any:
    """The batch with all of its samples twice."""
    count = num_samples(batch)

    def double(tree: Any) -> Any:
        if isinstance(tree, torch.Tensor):
            return torch.cat([tree, tree]) if tree.dim() and tree.shape[0] == count else tree
        if isinstance(tree, Mapping):
            return {key: double(value) for key, value in tree.items()}
        return type(tree)([double(value) for value in tree]) if type(tree) in (list, tuple) else tree

    return double(batch)


def samples(batch: Any) -> Iterator[Any]:
    """The samples of a batch, if its tensors share their first dimension; or its objects."""
    if _are_objects(batch):
        yield from batch
        return
    found = [tensor for _, tensor in tensors(batch)]
    count = num_samples(batch)
    for row in range(count):
        yield [tensor[row] for tensor in found if tensor.dim() and tensor.shape[0] == count]


def digest(tree: Any) -> bytes:
    """Equal exactly for samples of equal kind, shape and bytes; `Unreadable` if that cannot be computed."""
    hashed = hashlib.blake2b(digest_size=16)
    is_empty = True
    for _, tensor in tensors(tree):
        is_empty = False
        tensor = tensor.detach().cpu().contiguous()
        hashed.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        hashed.update(tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else b"")
    for leaf in _others(tree, 0):
        is_empty = False
        hashed.update(repr(leaf).encode())
    if is_empty:
        raise Unreadable("nothing that can be compared")
    return hashed.digest()


def _others(tree: Any, depth: int) -> Iterator[Any]:
    """The values that are not tensors."""
    held = attributes(tree)
    if isinstance(tree, PLAIN):
        yield tree
    elif tree is None or isinstance(tree, (torch.Tensor, *ASIDE)):
        return
    elif isinstance(tree, np.ndarray):
        if tree.dtype.kind == "O":
            yield from _others(tree.reshape(-1).tolist(), depth + 1)
        elif tree.dtype.kind not in "biuf":
            yield tree.tobytes()
    elif depth > MAX_DEPTH:
        raise Unreadable(f"a value of type {type(tree).__name__}, many levels deep")
    elif isinstance(tree, Mapping | tuple | list) or held is not None:
        members = held if held is not None else tree
        for value in members.values() if isinstance(members, Mapping) else members:
            yield from _others(value, depth + 1)
    elif isinstance(tree, Set):
        yield sorted(map(repr, tree))
    elif hasattr(tree, "tobytes"):  # as a PIL image
        yield tree.tobytes()
    elif type(tree) is not object:
        raise Unreadable(f"a value of type {type(tree).__name__}")


def _are_objects(batch: Any) -> bool:
    """Whether it is a list of uncollated samples."""
    return isinstance(batch, tuple | list) and bool(batch) and all(attributes(member) is not None for member in batch)


def _as_tensor(value: Any) -> torch.Tensor | None:
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, np.ndarray | int | float | list) and not isinstance(value, bool):
        try:
            return torch.as_tensor(value)
        except (TypeError, ValueError, RuntimeError):
            return None
    return None
