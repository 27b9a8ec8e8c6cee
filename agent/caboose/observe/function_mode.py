"""A torch function mode that reports functional activations and calls of attention while it is entered.

Design
------
The function itself is called first, and only what it returned is reported: a report that fails changes nothing.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, _pop_mode, _push_mode

from caboose.observe.attention import ATTENTION, SOFTMAX
from caboose.observe.functions import FUNCTIONS


class FunctionMode(TorchFunctionMode):
    """Reports functional activations while it is entered."""

    def __init__(self, report: Callable[[str, Any], None], attend: Callable[..., None]) -> None:
        super().__init__()
        self._report = report
        self._attend = attend

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Calls the function, and reports its output."""
        output = function(*args, **(kwargs or {}))
        name = FUNCTIONS.get(function)
        if name is not None:
            self._report(name, output)
        if function in ATTENTION or function in SOFTMAX:
            self._attend(function, args, kwargs or {}, output)
        return output


def take_off_the_stack(mode: FunctionMode) -> None:
    """Wherever it is on the stack: torch's own exit removes the top, which after an interrupt may be another."""
    above = []
    while torch._C._len_torch_function_stack():
        top = _pop_mode()  # type: ignore[no-untyped-call]  # torch gives no types
        if top is mode:
            break
        above.append(top)
    else:
        del above[:1]  # a block that the interrupt left has removed ours in place of its own, which is still there
    for other in reversed(above):
        _push_mode(other)  # type: ignore[no-untyped-call]  # torch gives no types
