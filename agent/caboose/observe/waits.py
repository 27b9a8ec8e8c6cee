"""When a backward begins and ends, and how long this rank waits for others in it and in the forward.

Design
------
Whoever is slow in a synchronous job, all ranks' steps take equally long: the others wait for it inside collectives. A
rank's own time is what is left without the waiting, so the waiting is timed where torch does it:

* DDP waits for the all-reduce at the end of the backward, in a callback of the autograd engine. A callback that was
  queued before runs before it: when all gradients are computed. So a hook on the loss, the first thing that a backward
  calls, queues one.
* DDP with buffers waits for rank 0's at the beginning of the forward.
* FSDP2 waits for shards in forward and backward, and for the reduction of gradients in backward.

What FSDP1 and tensor parallel layers wait for is not timed. Where FSDP2 is around tensor parallel layers, its own
waiting is not timed either: what it leaves out would be taken for the rank's own time.

`Tensor.backward` calls `torch.autograd.backward` by its name in the module, so replacing that one function sees every
backward; a backward inside a backward (activation checkpointing) is part of it. While all observers are turned off, it
is torch's own function. Where the wrapper does not reduce the gradients, the loop may do so after the backward: that
counts as backward, until the optimizer begins. The replacements are process-wide: made by the first observer, removed
by the last. What this torch does not have is not timed. Work on a device is waited for by its streams, not by the host:
the phase clock marks those.
"""

import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from caboose.guard import Protect
from caboose.observe.patches import Patches
from caboose.observe.phases import PhaseClock

PARAM_GROUP = "torch.distributed.fsdp._fully_shard._fsdp_param_group"
WAITING_METHODS = ("unshard", "wait_for_unshard", "post_backward", "finalize_backward")


class WaitObserver:
    """Marks a phase clock."""

    def __init__(self, clock: PhaseClock, protect: Protect, *, is_distributed: bool) -> None:
        """`is_distributed` if the backward reduces the gradients over ranks, and all waiting is known."""
        self._clock = clock
        self.is_partly_known = False
        """Whether ranks wait in other places too, so that no waiting is marked."""
        self._is_distributed = is_distributed
        self._hook: Any = None
        self.begin_backward = protect("backward", self._begin_backward)
        self.end_backward = protect("backward", self._end_backward)
        self.begin_wait = protect("waiting", clock.begin_wait)
        self.end_wait = protect("waiting", clock.end_wait)
        self._computed = protect("backward", self._note_computed)
        self._queue = protect("backward", self._queue_callback)
        self._is_waiting = False
        self._is_on = True
        self._is_closed = False
        self.read_roots: Callable[[Any], Any] | None = None
        """Called with what a backward starts from, before it begins; set in sampled steps."""
        self.note_backward: Callable[[], Any] | None = None
        """Called at each backward, while somebody counts them."""
        _watching.append(self)
        _observers.append(self)
        _install()
        _watch_backward()

    def turn(self, *, on: bool) -> None:
        """Whether anything is marked from now on; called between two steps."""
        if on is self._is_on or self._is_closed:
            return
        self._is_on = on
        if on:
            _watching.append(self)
        else:
            _watching.remove(self)
        _watch_backward()

    def _begin_backward(self, roots: Any) -> None:
        if self.read_roots is not None:
            self.read_roots(roots)
        if self.note_backward is not None:
            self.note_backward()
        self._clock.mark("backward")
        root = roots[0] if isinstance(roots, list | tuple) and roots else roots
        if self._is_distributed and isinstance(root, torch.Tensor) and root.requires_grad:
            self._hook = root.register_hook(self._queue)  # type: ignore[no-untyped-call]

    def _queue_callback(self, _gradient: torch.Tensor) -> None:
        torch.autograd.Variable._execution_engine.queue_callback(self._computed)  # noqa: SLF001 - as FSDP does

    def _note_computed(self) -> None:
        self._is_waiting = True
        self._clock.begin_wait()

    def _end_backward(self) -> None:
        hook, self._hook = self._hook, None
        if hook is not None:
            hook.remove()
        if self._is_waiting:
            self._is_waiting = False
            self._clock.end_wait()
        if self._is_distributed and self._clock.current == "backward":
            self._clock.mark("other")

    def close(self) -> None:
        """Stops; the replacements are removed with the last observer."""
        self._is_closed = True
        for watching in (_watching, _observers):
            if self in watching:
                watching.remove(self)
        _watch_backward()
        if not _observers:
            _patches.undo()


def in_fsdp2(model: torch.nn.Module) -> bool:
    """Whether `fully_shard` was applied."""
    return any(_sharded_modules(model))


def around_tensor_parallel(model: torch.nn.Module) -> bool:
    """Whether `fully_shard` was applied to parameters that are distributed tensors already."""
    groups = [getattr(_state_of(module), "_fsdp_param_group", None) for module in _sharded_modules(model)]
    return any(getattr(p, "is_dtensor", False) for group in groups for p in getattr(group, "fsdp_params", ()))


def _sharded_modules(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    return (m for m in model.modules() if any(base.__name__ == "FSDPModule" for base in type(m).__mro__))


def _state_of(module: Any) -> Any:
    find = getattr(module, "_get_fsdp_state", None)
    return None if find is None else find()


_observers: list[WaitObserver] = []
_watching: list[WaitObserver] = []
"""Those that are turned on."""
_patches = Patches()
_is_inside = False


def _forget() -> None:
    _watching.clear()
    _observers.clear()
    _patches.undo()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)  # a child is not watched


def _watch_backward() -> None:
    """While nobody watches, `backward` is torch's own."""
    if not _watching:
        _patches.take_out(torch.autograd, "backward")
    elif not _patches.has(torch.autograd, "backward"):
        _patches.put(torch.autograd, "backward", _watched_backward)


def _install() -> None:
    if not _patches.has(DistributedDataParallel, "_sync_buffers"):
        _patches.put(DistributedDataParallel, "_sync_buffers", _waiting)
    group = getattr(sys.modules.get(PARAM_GROUP), "FSDPParamGroup", None)
    for name in WAITING_METHODS:
        if hasattr(group, name) and not _patches.has(group, name):
            _patches.put(group, name, _waiting)


def _watched_backward(original: Callable[..., Any]) -> Callable[..., Any]:
    def backward(*args: Any, **kwargs: Any) -> Any:
        global _is_inside
        if _is_inside or not _watching or torch.compiler.is_compiling():
            return original(*args, **kwargs)
        observers = list(_watching)
        roots = args[0] if args else kwargs.get("tensors")
        _is_inside = True
        try:
            for observer in observers:
                observer.begin_backward(roots)
            return original(*args, **kwargs)
        finally:
            _is_inside = False
            for observer in observers:
                observer.end_backward()

    return backward


def _waiting(original: Callable[..., Any]) -> Callable[..., Any]:
    def waiting(*args: Any, **kwargs: Any) -> Any:
        if not _watching or torch.compiler.is_compiling():
            return original(*args, **kwargs)
        observers = [observer for observer in _watching if not observer.is_partly_known]
        for observer in observers:
            observer.begin_wait()
        try:
            return original(*args, **kwargs)
        finally:
            for observer in observers:
                observer.end_wait()

    return waiting
