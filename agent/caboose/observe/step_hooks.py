"""The hooks on the optimizers: before and after each of their steps.

Design
------
torch leaves step hooks out of an optimizer's pickles and copies. It iterates over them while it calls them, and raises
into the program if one is removed meanwhile; so they are removed only between two steps (`close`).

Where only learning rates are read (thin steps), the hook before the first optimizer's step compares them with those
read last, and the others do nothing.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from caboose.guard import Protect, Protected
from caboose.observe.engine_optimizer import EngineOptimizer


class StepHooks:
    """Owns the hooks of all optimizers; calls its owner with the optimizer's number."""

    def __init__(
        self,
        optimizers: Sequence[torch.optim.Optimizer],
        before: Callable[[int], None],
        after: Callable[[int], None],
        protect: Protect,
    ) -> None:
        self._optimizers = optimizers
        self._handles: list[RemovableHandle] = []
        self._before: list[Protected] = []
        self._after: list[Protected] = []
        for number, optimizer in enumerate(optimizers):
            if isinstance(optimizer, EngineOptimizer):
                optimizer.watch()
            read = _with_number(before, number)
            is_before = protect("optimizer hook", _reading(read, protect("optimizer hook", read)))
            is_after = protect("optimizer hook", _with_number(after, number))
            self._handles.append(optimizer.register_step_pre_hook(is_before))
            self._handles.append(optimizer.register_step_post_hook(is_after))
            self._before.append(is_before)
            self._after.append(is_after)

    def turn(self, *, on: bool, quick: Callable[[], bool]) -> None:
        """Off, only the first optimizer's hook asks `quick`, and does its work where the answer is no."""
        for number, hook in enumerate(self._before):
            hook.is_on = on or number == 0
            hook.quick = None if on else quick
        for hook in self._after:
            hook.is_on = on

    def close(self) -> None:
        """Removes the hooks. Not for one of them to call."""
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()
        for optimizer in self._optimizers:
            if isinstance(optimizer, EngineOptimizer):
                optimizer.release()


def _with_number(function: Callable[[int], None], number: int) -> Callable[..., None]:
    def hook(*_: Any) -> None:
        function(number)

    return hook


def _reading(read: Callable[[], None], read_outside: Callable[[], None]) -> Callable[..., Any]:
    """Reads at once; or, if the step is given a closure that makes the gradients, after that closure.

    By then this hook and its guard have returned, so the closure has its own guard.
    """

    def before(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        own = 1 if args and args[0] is optimizer else 0  # torch passes the optimizer itself as well
        closure = args[own] if len(args) > own else kwargs.get("closure")
        if not callable(closure):
            read()
            return None

        def closure_then_read() -> Any:
            result = closure()
            read_outside()
            return result

        if len(args) > own:
            return (*args[:own], closure_then_read, *args[own + 1 :]), kwargs
        return args, {**kwargs, "closure": closure_then_read}

    return before
