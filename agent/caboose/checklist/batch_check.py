"""`validate_batch`: whether one batch is fit for training; a call of every step, without a model.

Design
------
Each tensor is reduced to four numbers on its device, and all of them are read at once: one wait per batch. What is
judged is what is wrong in any batch: NaN or infinity, one element far out, labels outside of the classes. Whether data
are normalised, or classes balanced, needs more batches: that is `preflight`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from caboose.trials.batches import parted, tensors

EXTREME = 100.0
"""Inputs beyond plus or minus this are reported; pixels from 0 to 255 belong to it."""


@dataclass(frozen=True, slots=True)
class BatchCheck:
    """What is wrong with one batch."""

    problems: tuple[str, ...]
    ranges: dict[str, tuple[float, float]]
    """The lowest and highest finite value of each tensor, by its name."""

    @property
    def is_ok(self) -> bool:
        """Whether nothing is."""
        return not self.problems

    def __bool__(self) -> bool:
        return self.is_ok

    def __str__(self) -> str:
        shown = ", ".join(f"{name} {low:.4g} to {high:.4g}" for name, (low, high) in self.ranges.items())
        return "\n".join([f"! {problem}" for problem in self.problems] or [f"ok: {shown or 'no tensors'}"])


class BadBatch(ValueError):
    """A batch that must not be trained on; the message has all problems."""


def validate_batch(
    batch: Any,
    targets: Any = None,
    *,
    num_classes: int | None = None,
    limit: float = EXTREME,
    ignore_index: int = -100,
    split: Callable[[Any], tuple[Any, Any]] | None = None,
    raise_errors: bool = False,
) -> BatchCheck:
    """Looks for NaN, infinity, values beyond `limit`, empty tensors, and labels outside of 0 to `num_classes` - 1.

    `batch` is as your loader gives it, or the inputs alone with `targets`. With `raise_errors` a bad batch raises
    `BadBatch`.
    """
    inputs, labels = (batch, targets) if targets is not None else parted(batch, split)
    named = [(name or "inputs", tensor, True) for name, tensor in tensors(inputs)]
    named += [(name or "targets", tensor, False) for name, tensor in tensors(labels)]
    problems: list[str] = []
    ranges: dict[str, tuple[float, float]] = {}
    numbers = [(name, tensor, is_input) for name, tensor, is_input in named if tensor.numel() and _is_plain(tensor)]
    problems += [f"{name} is empty: shape {tuple(t.shape)}" for name, t, _ in named if not t.numel()]
    sizes = {tensor.shape[0] for _, tensor, _ in named if tensor.dim()}
    if len(sizes) > 1:
        problems.append(f"inputs and targets have different numbers of samples: {', '.join(map(str, sorted(sizes)))}")
    for (name, tensor, is_input), values in zip(numbers, _measured([t for _, t, _ in numbers]), strict=True):
        num_nan, num_infinite, low, high = values
        if low <= high:
            ranges[name] = low, high
        if num_nan or num_infinite:
            problems.append(f"{name}: {num_nan:.0f} NaN and {num_infinite:.0f} infinite of {tensor.numel()}")
        if is_input and tensor.is_floating_point() and low <= high and max(-low, high) > limit:
            problems.append(f"{name}: values from {low:.4g} to {high:.4g}, beyond {limit:g}: normalise, or pass limit=")
        if not is_input and num_classes is not None and not tensor.is_floating_point():
            problems += _outside(name, tensor, num_classes, ignore_index)
    found = BatchCheck(tuple(problems), ranges)
    if raise_errors and problems:
        raise BadBatch("; ".join(problems))
    return found


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_complex() and not tensor.is_quantized


@torch.no_grad()
def _measured(found: list[torch.Tensor]) -> list[list[float]]:
    """Numbers of NaN and infinities, lowest and highest finite value; in one wait for each device."""
    rows = []
    for tensor in found:
        if tensor.is_floating_point():
            finite = torch.isfinite(tensor)
            num_nan = torch.isnan(tensor).sum()
            low = tensor.where(finite, torch.inf).min()
            high = tensor.where(finite, -torch.inf).max()
            parts = [num_nan, (~finite).sum() - num_nan, low, high]
        else:
            zero = torch.zeros((), device=tensor.device)
            parts = [zero, zero, tensor.min(), tensor.max()]
        rows.append(torch.stack([part.double() for part in parts]))
    if len({row.device for row in rows}) == 1:
        together: list[list[float]] = torch.stack(rows).tolist()
        return together
    return [row.tolist() for row in rows]


def _outside(name: str, tensor: torch.Tensor, num_classes: int, ignored: int) -> list[str]:
    bad = tensor[((tensor < 0) | (tensor >= num_classes)) & (tensor != ignored)]
    if not bad.numel():
        return []
    return [f"{name}: {bad.numel()} labels outside 0 to {num_classes - 1}, as {int(bad.flatten()[0])}"]
