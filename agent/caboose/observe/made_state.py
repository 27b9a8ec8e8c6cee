"""Steps that torch takes to make an optimizer's state: they are no training steps.

Design
------
Before a distributed checkpoint is read or written, `torch.distributed.checkpoint.state_dict` makes the state of a new
optimizer by a step with gradients of zero and a learning rate of 0. That function is replaced by one that pauses what
is added here. A step of the training costs nothing for this.
"""

import contextlib
import weakref
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Protocol

from caboose.observe.patches import Patches

MODULE = "torch.distributed.checkpoint.state_dict"
MAKER = "_init_optim_state"


class Pausable(Protocol):
    """Has hooks on optimizers."""

    def pause(self) -> None: ...
    def resume(self) -> None: ...


_patches = Patches()
"""It stays until the process ends."""
_paused: "weakref.WeakSet[Any]" = weakref.WeakSet()
_made: "weakref.WeakSet[Any]" = weakref.WeakSet()
"""The optimizers whose state torch has made."""
_has_begun = False


def was_made(optimizer: Any) -> bool:
    """Whether torch has made the state of this optimizer."""
    return optimizer in _made


def add(hooks: Pausable) -> None:
    """They do nothing in such a step, as long as they exist."""
    _paused.add(hooks)


def begin(when_imported: Callable[[str, Callable[[ModuleType], Any]], None]) -> None:
    """Waits for the module, which is not imported here; once in a process."""
    global _has_begun
    if not _has_begun:
        _has_begun = True
        when_imported(MODULE, _watch)


def _watch(module: ModuleType) -> None:
    if hasattr(module, MAKER):
        _patches.put(module, MAKER, _pausing)


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """The optimizers' steps within the block are not of the training."""
    hooks: list[Pausable] = list(_paused)
    for each in hooks:
        each.pause()
    try:
        yield
    finally:
        for each in hooks:
            each.resume()


def _pausing(original: Callable[..., Any]) -> Callable[..., Any]:
    def make(*args: Any, **kwargs: Any) -> Any:
        new = [optimizer for optimizer in args[:1] if not optimizer.state]
        with paused():
            try:
                return original(*args, **kwargs)
            finally:
                _made.update(optimizer for optimizer in new if optimizer.state)

    return make
