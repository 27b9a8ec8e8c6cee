"""Keeps the model's last inputs, so that a bad step can be run again.

Design
------
Exists only with hunting on. Before each call of the model (see `observe.model_calls`), references to its arguments
(detached from any graph) and to the watched loader's batch are kept, and a copy of the random generator's state, a few
kilobytes. Nothing of the batch is copied, so a loop that changes its inputs in place after the forward changes what is
kept: the tensors' version counters show that, and the result reports it.

Bounded: at most `MAX_STEPS` steps, `MAX_CALLS` forwards each (gradient accumulation), and `MAX_BYTES` of tensors in
all. Larger batches are not kept, and the reason is.
"""

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from caboose.observe.model_calls import CallWatch

MAX_STEPS = 4
MAX_CALLS = 16
MAX_BYTES = 256 * 2**20
MAX_DEPTH = 4
MAX_OPERATIONS = 4


@dataclass(frozen=True, slots=True)
class Call:
    """One forward of the model: its inputs and circumstances."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    batch: Any = None
    """The watched loader's last batch; None if none is watched."""
    random: tuple[torch.Tensor, torch.Tensor | None] | None = None
    """Of the CPU and the model's device, just before."""
    autocast: torch.dtype | None = None
    """The autocast type; None without autocast."""
    is_training: bool = True
    versions: tuple[int, ...] = ()

    @property
    def was_changed(self) -> bool:
        """Whether the tensors were written to since."""
        return bool(self.versions) and self.versions != _versions((self.args, self.kwargs))


@dataclass(slots=True)
class Capture:
    """The forwards of one step."""

    step: int = 0
    """Known when the step has ended."""
    batch: int | None = None
    epoch: int | None = None
    calls: list[Call] = field(default_factory=list)
    loss_made_by: tuple[str, ...] = ()
    """The last operations that made the loss, the last first."""
    num_bytes: int = 0
    num_left_out: int = 0
    """Forwards beyond the limit."""
    why_empty: str = ""
    """Why forwards are missing, if they are."""


class Captures:
    """The forwards of the last few steps."""

    def __init__(self, model: torch.nn.Module, protect: Any) -> None:
        self._model = model
        self._device = next((p.device for p in model.parameters()), torch.device("cpu"))
        self._batch: Any = None
        self._open = Capture()
        self._steps: list[Capture] = []
        self._thread = threading.get_ident()
        self.is_frozen = False
        """Whether a bad step is kept, and later ones are not."""
        self._watch = CallWatch(model, protect("hunt hook", self._before_forward))

    def see(self, batch: Any) -> None:
        """The watched loader returned a batch."""
        self._batch = batch

    def _before_forward(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.is_frozen or not torch.is_grad_enabled() or threading.get_ident() != self._thread:
            return
        if torch.compiler.is_compiling():
            return
        now = self._open
        size = num_bytes((args, kwargs)) + num_bytes(self._batch)
        while self._steps and now.num_bytes + size + sum(c.num_bytes for c in self._steps) > MAX_BYTES:
            self._steps.pop(0)
        if now.num_bytes + size > MAX_BYTES:
            now.why_empty = (
                f"its inputs have {(now.num_bytes + size) >> 20} MiB, and {MAX_BYTES >> 20} are kept at most"
            )
            return
        if len(now.calls) >= MAX_CALLS:
            now.num_left_out += 1
            return
        kind = self._device.type
        device = None if kind == "cpu" else torch.get_device_module(kind).get_rng_state()
        kept = (_cut(args), _cut(kwargs))
        now.calls.append(
            Call(
                args=kept[0],
                kwargs=kept[1],
                batch=self._batch,
                random=(torch.get_rng_state(), device),
                autocast=torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None,
                is_training=module.training,
                versions=_versions(kept),
            )
        )
        now.num_bytes += size

    def end_step(self, step: int, batch: int | None, epoch: int | None, loss: Any) -> None:
        """The step has ended: assigns it the kept forwards."""
        if self.is_frozen:
            return
        ended, self._open = self._open, Capture()
        ended.step, ended.batch, ended.epoch = step, batch, epoch
        ended.loss_made_by = _made_by(loss)
        self._steps = [*self._steps[1 - MAX_STEPS :], ended]

    def forget_before(self, step: int) -> None:
        """Earlier steps were fine."""
        self._steps = [capture for capture in self._steps if capture.step >= step]

    def find(self, step: int | None) -> Capture | None:
        """The forwards of this step; without a step, of the newest (or the current one, after its first forward)."""
        if step is None:
            return self._open if self._open.calls or not self._steps else self._steps[-1]
        return next((capture for capture in self._steps if capture.step == step), None)

    @property
    def steps(self) -> list[int]:
        """The steps whose forwards are kept, oldest first."""
        return [capture.step for capture in self._steps]

    def thaw(self) -> None:
        """Drops everything, and starts to keep again."""
        self._steps, self._open, self.is_frozen = [], Capture(), False

    def close(self) -> None:
        """Removes the hook, and drops everything."""
        self._watch.remove()
        self._batch = None
        self.thaw()


def tensors(tree: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """All tensors of some arguments."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif depth < MAX_DEPTH and isinstance(tree, Mapping | tuple | list):
        for value in tree.values() if isinstance(tree, Mapping) else tree:
            yield from tensors(value, depth + 1)


def num_bytes(tree: Any) -> int:
    """Of all tensors in it."""
    return sum(tensor.nbytes for tensor in tensors(tree) if tensor.layout is torch.strided)


def _cut(tree: Any, depth: int = 0) -> Any:
    """The same without a graph; tensors that are in none are the same objects."""
    if isinstance(tree, torch.Tensor):
        return tree if tree.grad_fn is None else tree.detach().requires_grad_(tree.requires_grad)
    if depth < MAX_DEPTH and type(tree) in (tuple, list):
        return type(tree)([_cut(value, depth + 1) for value in tree])
    if depth < MAX_DEPTH and type(tree) is dict:
        return {key: _cut(value, depth + 1) for key, value in tree.items()}
    return tree


def _versions(tree: Any) -> tuple[int, ...]:
    return tuple(0 if tensor.is_inference() else tensor._version for tensor in tensors(tree))


def _made_by(loss: Any) -> tuple[str, ...]:
    """The operations that made the loss, as autograd names them."""
    names: list[str] = []
    node = getattr(loss, "grad_fn", None)
    while node is not None and len(names) < MAX_OPERATIONS and not str(node.name()).startswith("torch::"):
        names.append(str(node.name()))
        node = next((before for before, _ in node.next_functions if before is not None), None)
    return tuple(names)
