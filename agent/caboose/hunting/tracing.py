"""Observes a forward and a backward, by module and by operation, for the first bad number.

Design
------
Three views are combined. Hooks on every module record inputs and outputs. A dispatch mode sees every operation below
autograd: an *event* is one that makes a number that is not finite from finite ones, or NaN from infinities; an
infinity that the code itself wrote (a mask of minus infinity) is no event. Autograd's anomaly mode, without its own
check (which sees NaN only, and raises), keeps the line of code behind each node, so that an operation of the backward
is known by its node (`SqrtBackward0`), its line, and, by the node's sequence number, its module.

Events inside a module whose outputs are finite are dropped when it returns: it handled them. Those that are left at the
end are the origin of the bad result.

Every check waits for the device, which is why this is only done for a batch that is known to be bad.

A rank runs this alone, so a collective in the user's forward (a SyncBatchNorm, an expert's exchange) would wait for
ranks that never come: it is detected before it begins, and ends the run with `CollectiveMet`.
"""

import linecache
import math
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.hooks import RemovableHandle

from caboose.hunting.bad_numbers import bad_rows, is_bad, is_number
from caboose.hunting.capturing import tensors
from caboose.observe.layers import plain_name

MAX_EVENTS = 64
ITSELF = "(the model itself)"
UNWRITTEN = ("empty", "new_empty", "set_", "resize", "_efficientzerotensor")
"""Operations whose output is uninitialised memory."""
FRAME = re.compile(r'File "(?P<file>.+)", line (?P<line>\d+), in (?P<function>.+)')
FOREIGN = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(__file__) + os.sep)
"""Code that is not the user's."""


COLLECTIVE = ("c10d", "_c10d_functional", "c10d_functional", "symm_mem")
"""Namespaces of operations that other ranks take part in."""


class CollectiveMet(RuntimeError):
    """The model communicates in its forward or backward."""


class Alone(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch gives no types
    """Runs without the other ranks: an operation that would wait for them raises."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        refuse_collective(func)
        return func(*args, **(kwargs or {}))


def refuse_collective(func: Any) -> None:
    """Raises before an operation of several ranks."""
    if func.namespace in COLLECTIVE:
        raise CollectiveMet(f"the model runs a collective ({func.overloadpacket}), and this rank is alone in it")


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """An operation that made bad numbers from good ones."""

    operation: str
    module: str
    module_kind: str
    line: str
    is_backward: bool
    is_first: bool
    """Whether all inputs were finite; else NaN was made from infinities."""
    num_bad: int
    largest: float | None
    """Magnitude of the inputs."""
    dtype: str
    rows: tuple[int, ...]
    """Bad samples in the output; empty if unknown."""


@dataclass(slots=True)
class _Visit:
    """A call of a module."""

    name: str
    kind: str
    began: int
    """Autograd's sequence number then."""
    num_events: int
    had_bad_input: bool
    depth: int
    ended: int = sys.maxsize


@dataclass(frozen=True, slots=True)
class BadCall:
    """The first module with bad outputs."""

    name: str
    kind: str
    had_bad_input: bool
    rows: tuple[int, ...]


class Trace(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch gives no types
    """One forward and backward of a model."""

    def __init__(self, model: torch.nn.Module, num_samples: int = 0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self._model = model
        self._num_samples = num_samples
        self._stack: list[_Visit] = []
        self._visits: list[_Visit] = []
        self._handles: list[RemovableHandle] = []
        self.events: list[TraceEvent] = []
        self.module: BadCall | None = None

    def __enter__(self) -> "Trace":
        for name, module in self._model.named_modules():
            if not isinstance(module, torch.jit.ScriptModule):
                self._watch(plain_name(name) or ITSELF, module)
        torch.autograd.set_detect_anomaly(True, check_nan=False)
        super().__enter__()  # type: ignore[no-untyped-call]  # as above
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]  # as above
        torch.autograd.set_detect_anomaly(False)
        for handle in self._handles:
            handle.remove()

    def first(self, *, is_backward: bool) -> TraceEvent | None:
        """The origin of the bad result: where finite numbers broke, or else where infinities became NaN."""
        events = [event for event in self.events if event.is_backward is is_backward]
        return next((event for event in events if event.is_first), next(iter(events), None))

    # Modules

    def _watch(self, name: str, module: torch.nn.Module) -> None:
        kind = type(module).__name__

        def before(_module: Any, args: Any, kwargs: Any) -> None:
            had_bad = any(is_bad(tensor) for tensor in tensors((args, kwargs)))
            began = _now()
            visit = _Visit(name, kind, began, len(self.events), had_bad, len(self._stack))
            self._stack.append(visit)
            self._visits.append(visit)

        def after(_module: Any, _args: Any, _kwargs: Any, output: Any) -> None:
            visit = self._stack.pop()
            visit.ended = _now()
            bad = [tensor for tensor in tensors(output) if is_bad(tensor)]
            if not bad:
                del self.events[visit.num_events :]
            elif self.module is None and len(self.events) > visit.num_events:
                self.module = BadCall(name, kind, visit.had_bad_input, self._rows(bad[0]))

        self._handles.append(module.register_forward_pre_hook(before, with_kwargs=True, prepend=True))
        self._handles.append(module.register_forward_hook(after, with_kwargs=True))

    def _module_of(self, node: Any) -> tuple[str, str]:
        """The innermost module in whose forward a node of the graph was made."""
        number = node._sequence_nr()
        around = [visit for visit in self._visits if visit.began <= number < visit.ended]
        inner = max(around, key=lambda visit: visit.depth, default=None)
        return ("", "") if inner is None else (inner.name, inner.kind)

    # Operations

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        refuse_collective(func)
        kwargs = kwargs or {}
        name = str(func.overloadpacket).removeprefix("aten.")
        if len(self.events) >= MAX_EVENTS or name.startswith(UNWRITTEN):
            return func(*args, **kwargs)
        before = self._state((args, kwargs)) if func._schema.is_mutable else None
        output = func(*args, **kwargs)
        made = list(tensors(output))
        if "attention" in name:
            made = made[:1]  # the others are internal, and infinite where a row is masked
        bad = next((tensor for tensor in made if is_bad(tensor)), None)
        if bad is not None and not _is_meant((args, kwargs)):
            had_bad, had_nan, largest = before or self._state((args, kwargs))
            if not had_bad or (not had_nan and bool(torch.isnan(bad).any())):
                self._note(name, bad, is_first=not had_bad, largest=largest)
        return output

    def _state(self, arguments: Any) -> tuple[bool, bool, float | None]:
        """Whether the inputs are bad, have NaN, and their largest finite magnitude."""
        had_bad = had_nan = False
        largest: float | None = None
        for tensor in tensors(arguments):
            if not is_number(tensor):
                continue
            values = tensor.detach()
            had_bad = had_bad or is_bad(values)
            had_nan = had_nan or bool(torch.isnan(values).any())
            size = float(torch.nan_to_num(values.abs().float(), nan=0.0, posinf=0.0).max())
            largest = size if largest is None else max(largest, size)
        return had_bad, had_nan, largest

    def _note(self, name: str, bad: torch.Tensor, *, is_first: bool, largest: float | None) -> None:
        node: Any = torch._C._current_autograd_node()  # None in a forward, unlike its declared type
        visit = self._stack[-1] if self._stack else None
        module, kind = ("", "") if visit is None else (visit.name, visit.kind)
        operation, line = name.strip("_"), ""
        if node is not None:
            operation = str(node.name())
            module, kind = self._module_of(node)
            line = _line_of_node(node)
        elif is_first or not self.events:
            line = _line_here()
        self.events.append(
            TraceEvent(
                operation=operation,
                module=module,
                module_kind=kind,
                line=line,
                is_backward=node is not None,
                is_first=is_first,
                num_bad=int((~torch.isfinite(bad)).sum()),
                largest=largest,
                dtype=str(bad.dtype).removeprefix("torch."),
                rows=self._rows(bad),
            )
        )

    def _rows(self, tensor: torch.Tensor) -> tuple[int, ...]:
        """The bad samples; none if the first dimension is not the batch's, or all of them are bad."""
        if not tensor.dim() or tensor.shape[0] != self._num_samples or self._num_samples < 2:
            return ()
        rows = bad_rows(~torch.isfinite(tensor.detach()))
        return rows if len(rows) < self._num_samples else ()


def _now() -> int:
    """The sequence number of the next node of the graph."""
    number: int = torch._C._autograd._get_sequence_nr()
    return number


def _is_meant(arguments: Any) -> bool:
    """Whether the code itself wrote an infinity, as for a mask."""
    args, kwargs = arguments
    return any(isinstance(value, float) and not math.isfinite(value) for value in _scalars((*args, *kwargs.values())))


def _scalars(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, tuple | list):
            yield from value
        else:
            yield value


def _line_here() -> str:
    frame: Any = sys._getframe()
    while frame is not None:
        if not frame.f_code.co_filename.startswith((*FOREIGN, "<")):
            return _line(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back
    return ""


def _line_of_node(node: Any) -> str:
    for text in reversed(node.metadata.get("traceback_") or []):
        found = FRAME.search(text)
        if found is not None and not found["file"].startswith((*FOREIGN, "<")):
            return _line(found["file"], int(found["line"]), found["function"])
    return ""


def _line(file: str, number: int, function: str) -> str:
    code = linecache.getline(file, number).strip()[:80]
    return f"{os.path.basename(file)}:{number} in {function}{f': {code}' if code else ''}"
