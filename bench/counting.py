"""What a variant makes torch do, counted instead of timed: operations, host syncs, temporary bytes.

Design
------
A separate pass, never timed. Torch's modes are per thread, so only the training thread is counted (on CPU the
backward pass runs on it as well). Operations and syncs are differences against the same steps without the variant.

*Operations* are calls that reach torch's dispatcher from the program; a fused call (`_foreach_norm`) is one.

*Host syncs* are what would make the host wait for a device, even if this machine has none: operations that torch tags
as returning a host value or a data-dependent shape, and `.cpu()`, `.tolist()`, `.to("cpu")`
without `non_blocking`. A copy whose target is only known at run time is not recognised. Caboose reads the loss of a
plain or thin step at once where it is in the host's memory (`ON_HOST`), and only there: that waits for nothing.

*Temporary bytes* are the peak of live tensor storages that were allocated while the variant's code was on the stack,
including its buffers. Scratch memory inside a kernel and NumPy's memory are not counted; the latter favours TensorBoard
and wandb.
"""

import sys
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from models import Workload
from peers import DRILLS, OWNERS, Variant, bare
from timing import WARM_STEPS
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_WAITS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_PASSING = ("__torch_function__", "__torch_dispatch__")
"""Functions of a mode: an operation called directly in them is the program's own, passing through."""
TORCH = "/site-packages/torch/"
ON_HOST = {"on_host": ("caboose/tensors/readable.py",), "end_step": ("caboose/report/thin_steps.py",)}
"""Functions of the agent, and their files, that read a loss only where it is on the CPU."""
_AROUND = ("caboose/observe/model_calls.py", "caboose/observe/waits.py")
"""Stand around the model's own forward and backward, and make no tensor themselves."""


@dataclass(frozen=True)
class Counts:
    """Per step, averaged over a period; the bytes are a peak."""

    num_operations: float
    num_syncs: float
    temporary_bytes: int


class _Operations(TorchDispatchMode):
    """Counts dispatched operations and tracks storages allocated by the owners' code."""

    def __init__(self, owners: Sequence[str]) -> None:
        super().__init__()
        self._owners = tuple(owners)
        self._alive: dict[int, Any] = {}
        self._alive_bytes = 0
        self.num_operations = 0
        self.num_syncs = 0
        self.peak_bytes = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        self.num_operations += 1
        if _waits(function, args) and not _is_on_host():
            self.num_syncs += 1
        outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        if outputs and self._is_owned():
            given = {leaf.untyped_storage()._cdata for leaf in tree_leaves((args, kwargs)) if _has_storage(leaf)}
            for output in outputs:
                self._follow(output, given)
        return result

    def _is_owned(self) -> bool:
        frame = sys._getframe(2)
        while frame is not None:
            name = frame.f_code.co_filename
            is_passing = frame.f_code.co_name in _PASSING or name.endswith(_AROUND)
            if not is_passing and DRILLS not in name and any(owner in name for owner in self._owners):
                return True
            frame = frame.f_back
        return False

    def _follow(self, output: torch.Tensor, given: set[int]) -> None:
        if not _has_storage(output):
            return
        storage = output.untyped_storage()
        key = storage._cdata
        if key in given or key in self._alive:
            return  # a view or an operation in place: nothing was allocated
        size = storage.nbytes()

        def gone(_: Any) -> None:
            if self._alive.pop(key, None) is not None:
                self._alive_bytes -= size

        self._alive[key] = weakref.ref(storage, gone)
        self._alive_bytes += size
        self.peak_bytes = max(self.peak_bytes, self._alive_bytes)


class _HostCopies(TorchFunctionMode):
    """Counts transfers to the host that need no operation if the tensor is already on the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.num_syncs = 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        is_copy = function is torch.Tensor.to and "cpu" in [a for a in (*args, *kwargs.values()) if isinstance(a, str)]
        if function in (torch.Tensor.cpu, torch.Tensor.tolist) or (is_copy and not kwargs.get("non_blocking")):
            self.num_syncs += 1
        return function(*args, **kwargs)


def _waits(function: Any, args: Any) -> bool:
    if not _WAITS.intersection(function.tags):
        return False
    if function.overloadpacket is torch.ops.aten.index:  # tagged for masks; with numbers the shape is known
        return any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1])
    return True


def _is_on_host() -> bool:
    """Whether the caller of the operation reads what is in the host's memory, and nothing else."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and (frame.f_code.co_name in _PASSING or TORCH in frame.f_code.co_filename):
        frame = frame.f_back  # torch's own, around the modes
    code = None if frame is None else frame.f_code
    return code is not None and code.co_filename.endswith(ON_HOST.get(code.co_name, ("nowhere",)))


def _has_storage(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided


def count(workload: Workload, variant: Variant) -> Counts:
    """What the variant adds to one step."""
    steps = variant.period
    added = _run(workload, variant, steps)
    base = _run(workload, Variant("bare", "bare", bare), 1)  # every bare step does the same
    return Counts(
        num_operations=added.num_operations / steps - base.num_operations,
        num_syncs=added.num_syncs / steps - base.num_syncs,
        temporary_bytes=added.temporary_bytes,
    )


def _run(workload: Workload, variant: Variant, steps: int) -> Counts:
    workload.restore()
    operations, copies = _Operations(OWNERS), _HostCopies()
    with copies, operations, variant.open(workload) as calls:
        loader = iter(calls.watch(workload.stream()))
        for _ in range(WARM_STEPS):
            workload.step(next(loader), calls)
        before = (operations.num_operations, operations.num_syncs + copies.num_syncs)
        for _ in range(steps):
            workload.step(next(loader), calls)
        after = (operations.num_operations, operations.num_syncs + copies.num_syncs)
    return Counts(after[0] - before[0], after[1] - before[1], operations.peak_bytes)
