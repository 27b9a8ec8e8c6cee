"""The hooks on the optimizers: before and after each of their steps.

Design
------
torch leaves step hooks out of an optimizer's pickles and copies. It iterates over them while it calls them, and raises
into the program if one is removed meanwhile; so they are removed only between two steps (`close`).

Where only learning rates are read (thin steps), the hook before the first optimizer's step compares them with those
read last, and is done if they are the same objects; the other hooks do nothing. These few lines are outside the guard,
which would cost more than they do: they call nothing of the user's.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from caboose.guard import Protect, Protected
from caboose.observe import made_state
from caboose.observe.engine_optimizer import EngineOptimizer
from caboose.observe.optimizers import OptimizerState

_is_compiling = torch.compiler.is_compiling


class StepHooks:
    """Owns the hooks of all optimizers; calls its owner with the optimizer's number."""

    def __init__(
        self,
        optimizers: Sequence[torch.optim.Optimizer],
        before: Callable[[int], None],
        after: Callable[[int], None],
        state: OptimizerState,
        protect: Protect,
    ) -> None:
        self._optimizers = optimizers
        self._handles: list[RemovableHandle] = []
        self._before: list[BeforeStep] = []
        self._after: list[Protected] = []
        for number, optimizer in enumerate(optimizers):
            if isinstance(optimizer, EngineOptimizer):
                optimizer.watch()
            read = _with_number(before, number)
            reading = protect("optimizer hook", before_step(read, protect("optimizer hook", read)))
            is_before = BeforeStep(reading, state, protect("optimizer hook", state.read_again), is_first=number == 0)
            is_after = protect("optimizer hook", _with_number(after, number))
            self._handles.append(optimizer.register_step_pre_hook(is_before))
            self._handles.append(optimizer.register_step_post_hook(is_after))
            self._before.append(is_before)
            self._after.append(is_after)
        self._paused: list[tuple[Protected, bool]] = []
        made_state.add(self)

    def turn(self, *, thin: bool) -> None:
        """Whether the next step is a thin one; called between two steps."""
        for before in self._before:
            before.is_thin = thin
        for after in self._after:
            after.is_on = not thin

    def pause(self) -> None:
        """The steps until `resume` are not of the training."""
        self._paused = [(hook, hook.is_on) for hook in self._protected()]
        for hook, _ in self._paused:
            hook.is_on = False

    def resume(self) -> None:
        """As before `pause`."""
        for hook, was_on in self._paused:
            hook.is_on = was_on
        self._paused = []

    def _protected(self) -> list[Protected]:
        return [*(hook for before in self._before for hook in before.parts), *self._after]

    def close(self) -> None:
        """Removes the hooks. Not for one of them to call."""
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()
        for optimizer in self._optimizers:
            if isinstance(optimizer, EngineOptimizer):
                optimizer.release()


class BeforeStep:
    """The hook before an optimizer's step."""

    __slots__ = ("_is_first", "_read_again", "_reading", "_state", "is_thin")
    __torch_unserializable__ = True  # as of `Protected`

    def __init__(self, reading: Protected, state: OptimizerState, read_again: Protected, *, is_first: bool) -> None:
        self._reading = reading
        self._state = state
        self._read_again = read_again
        self._is_first = is_first
        self.is_thin = False

    def __call__(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self.is_thin or _is_compiling():
            return self._reading(optimizer, args, kwargs)
        if not self._is_first:
            return None
        groups, values = optimizer.param_groups, self._state.values
        if len(groups) == len(values):
            for group, value in zip(groups, values):  # noqa: B905 - as long as each other
                if group.get("lr") is not value:
                    break
            else:
                return None
        self._read_again()
        return None

    @property
    def parts(self) -> tuple[Protected, Protected]:
        """What it calls."""
        return self._reading, self._read_again

    def __reduce__(self) -> tuple[Any, ...]:
        return self._reading.__reduce__()


def _with_number(function: Callable[[int], None], number: int) -> Callable[..., None]:
    def hook(*_: Any) -> None:
        function(number)

    return hook


def before_step(read: Callable[[], None], read_outside: Callable[[], None]) -> Callable[..., Any]:
    """A hook that reads at once; or, if the step is given a closure that makes the gradients, after that closure.

    By then the hook and its guard have returned, so `read_outside` has its own guard.
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
