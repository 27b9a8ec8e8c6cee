"""Records the state of objects and restores it in place, bit for bit.

Design
------
A trial runs the user's own forward, backward and optimizer step, so what will change is not known beforehand. What is
recorded is a tree of plain Python (attributes, dictionaries, lists) with tensors and generators in it; restoring gives
each container its former members, and each tensor and generator its former content. The objects themselves stay: DDP's
buckets, an optimizer's references to its parameters and a caller's references remain valid.

Tensors are copied to the host, so a trial needs no memory on the device for a second model. Data (`is_data`) is only
searched for counters and generators: reading does not write its tensors and long lists, which may be large.

A trial also follows the objects of user classes that modules hold (`follows_objects`): statistics, queues, modules that
are hidden from their parent. It goes only a few objects deep, and ignores objects of libraries, which may represent
something outside of this process: a lock, a stream, a trainer.
"""

import copy
import random
import sys
from collections import deque
from collections.abc import Callable
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

from caboose.tensors.tensor_tree import inner_tensors

MAX_MEMBERS = 100_000
"""Larger containers count as data and are ignored."""
MAX_DATA_MEMBERS = 1_000
MAX_DEPTH = 6
"""How far objects are followed from a loader: sampler, dataset, the dataset below it, its transforms."""
MAX_OBJECT_DEPTH = 3
"""How far objects are followed from a module."""
MAX_OBJECT_BYTES = 256 * 2**20
"""The largest tensor of such an object; larger ones count as data."""
LIBRARIES = frozenset({"torch", "numpy", "caboose", "lightning", "pytorch_lightning", "lightning_fabric", "accelerate"})
FOLLOWED = (torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)
"""Objects that are recorded wherever they are found."""
OPAQUE = (type, ModuleType, FunctionType, MethodType, torch.nn.Module, torch.dtype, torch.device)


class Kept:
    """What has been recorded, and how to restore it."""

    def __init__(self, *, follows_objects: bool = False) -> None:
        self._follows_objects = follows_objects
        self.trained: list[torch.Tensor] = []
        """The tensors found that a backward may give a gradient."""
        self._ways_back: list[Callable[[], None]] = []
        self._seen: dict[int, Any] = {}  # holds the objects too, so that an id is not used again

    def put_back(self) -> None:
        """Restores everything; may be repeated."""
        with torch.no_grad():
            for way_back in self._ways_back:
                way_back()

    def keep(self, thing: Any, *, is_data: bool = False, depth: int = 0) -> None:
        """Records one object and what it holds."""
        if thing is None or isinstance(thing, bool | int | float | complex | str | bytes) or id(thing) in self._seen:
            return
        self._seen[id(thing)] = thing
        if isinstance(thing, torch.Tensor):
            if not is_data and (not depth or thing.numel() * thing.element_size() <= MAX_OBJECT_BYTES):
                self._keep_tensor(thing)
        elif isinstance(thing, np.ndarray):
            if not is_data and (not depth or thing.nbytes <= MAX_OBJECT_BYTES):
                self._keep_array(thing)
        elif isinstance(thing, dict | list | tuple | set | deque):
            self._keep_members(thing, is_data=is_data, depth=depth)
        elif self._keep_generator(thing):
            pass
        elif is_data or isinstance(thing, FOLLOWED):
            self._keep_object(thing, is_data=is_data, depth=depth)
        elif self._follows_objects and isinstance(thing, torch.nn.Module):
            self.keep_attributes(thing)
        elif self._follows_objects and depth < MAX_OBJECT_DEPTH and _is_users_own(thing):
            self._keep_object(thing, is_data=False, depth=depth)
            self._keep_slots(thing, depth=depth)

    def keep_attributes(self, thing: Any, *, is_data: bool = False) -> None:
        """Records an object's attributes, whatever it is."""
        self._seen[id(thing)] = thing
        self.keep(vars(thing), is_data=is_data)

    def _keep_tensor(self, tensor: torch.Tensor) -> None:
        if tensor.layout is not torch.strided or tensor.is_quantized:
            return  # such a tensor is never written in place by training; its place in the tree is recorded
        if tensor.is_leaf and (tensor.requires_grad or isinstance(tensor, torch.nn.Parameter)):
            self.trained.append(tensor)
        for plain in inner_tensors(tensor, "").values():
            former = plain.detach().to("cpu", copy=True)
            self._ways_back.append(lambda plain=plain, former=former: _write(plain, former))  # type: ignore[misc]

    def _keep_array(self, array: "np.ndarray[Any, Any]") -> None:
        former = array.copy()
        if array.flags.writeable:
            self._ways_back.append(lambda: np.copyto(array, former))

    def _keep_members(self, thing: Any, *, is_data: bool, depth: int) -> None:
        if len(thing) > (MAX_DATA_MEMBERS if is_data else MAX_MEMBERS):
            return
        members = list(thing.items()) if isinstance(thing, dict) else list(thing)
        for member in [value for _, value in members] if isinstance(thing, dict) else members:
            self.keep(member, is_data=is_data, depth=depth)
        if isinstance(thing, dict):
            self._ways_back.append(lambda: _put_items(thing, members))
        elif isinstance(thing, list):
            self._ways_back.append(lambda: _put_members(thing, members))
        elif isinstance(thing, set | deque):
            self._ways_back.append(lambda: _refill(thing, members))

    def _keep_generator(self, thing: Any) -> bool:
        if isinstance(thing, torch.Generator):
            state = thing.get_state()
            self._ways_back.append(lambda: _ignore(thing.set_state(state)))
        elif isinstance(thing, random.Random):
            python = thing.getstate()
            self._ways_back.append(lambda: thing.setstate(python))
        elif isinstance(thing, np.random.Generator | np.random.RandomState):
            bits: Any = thing.bit_generator if isinstance(thing, np.random.Generator) else thing._bit_generator
            former = copy.deepcopy(bits.state)
            self._ways_back.append(lambda: setattr(bits, "state", former))
        else:
            return False
        return True

    def _keep_object(self, thing: Any, *, is_data: bool, depth: int) -> None:
        if depth < MAX_DEPTH and not isinstance(thing, OPAQUE) and hasattr(thing, "__dict__"):
            self.keep(vars(thing), is_data=is_data, depth=depth + 1)

    def _keep_slots(self, thing: Any, *, depth: int) -> None:
        for name in {name for kind in type(thing).__mro__ for name in _slots(kind)}:
            if hasattr(thing, name):
                value = getattr(thing, name)
                self.keep(value, depth=depth + 1)
                self._ways_back.append(lambda name=name, value=value: object.__setattr__(thing, name, value))  # type: ignore[misc]


def _is_users_own(thing: Any) -> bool:
    """Whether it is an object of a user's class."""
    root = (type(thing).__module__ or "").partition(".")[0]
    return not isinstance(thing, OPAQUE) and root not in LIBRARIES and root not in sys.stdlib_module_names


def _slots(kind: type) -> tuple[str, ...]:
    found = vars(kind).get("__slots__", ())
    names = (found,) if isinstance(found, str) else tuple(found)
    return tuple(name for name in names if not name.startswith("__"))


def _write(tensor: torch.Tensor, former: torch.Tensor) -> None:
    if tensor.shape != former.shape:  # resized meanwhile
        tensor.resize_(former.shape)
    tensor.copy_(former)


def _put_items(thing: dict[Any, Any], items: list[tuple[Any, Any]]) -> None:
    now = list(thing.items())
    if len(now) != len(items) or any(a[0] is not b[0] or a[1] is not b[1] for a, b in zip(now, items, strict=True)):
        thing.clear()
        thing.update(items)


def _refill(thing: "set[Any] | deque[Any]", members: list[Any]) -> None:
    thing.clear()
    for member in members:
        (thing.add if isinstance(thing, set) else thing.append)(member)


def _put_members(thing: list[Any], members: list[Any]) -> None:
    thing[:] = members


def _ignore(_value: Any) -> None:
    return None
