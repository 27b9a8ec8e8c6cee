"""What a loss was scaled by before `backward`, as its graph shows, and the loss of a step without that.

Design
------
The last operations of a loss are read from its graph, on the host alone: divisions and multiplications by a number.
From what the micro-batches of a step have in common it is known what the number means:

* divided by the number of micro-batches: that is undone, also in a later, shorter step;
* multiplied by weights that add up to 1, the micro-batches' parts of the step: the losses are added;
* multiplied by a whole number (its tokens, the ranks), whose effect the loop takes out of the gradients or of their
  mean later: the products are added and divided by the sum of these numbers;
* all divided by one number that is more than each of them adds up, or that was computed for this step: the number of
  tokens of the whole step. Then the losses are shares of the step's, and are added;
* anything else is a weight of the objective, and stays.

A value on a device is not waited for: a product is divided there, and a divisor is compared by its place in memory. A
tensor that was saved through hooks (offloading, checkpointing) is not read: some of these give it back only once,
others compute it again.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

MAX_OPERATIONS = 4
MAX_BELOW = 8
"""Operations that are looked at between a division and the sum below it."""
DIVISION, PRODUCT = "DivBackward0", "MulBackward0"
SAME_VALUE = frozenset({"AddBackward0", "AliasBackward0", "NegBackward0", "ToCopyBackward0", "ViewBackward0"})
"""Operations on a sum that leave it one: of types and shapes, of its sign, and with a term added."""
SUM = 2
"""torch's number for `reduction="sum"`."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How one loss was scaled."""

    divisors: tuple[float, ...] = ()
    """The plain numbers by which it was divided in all: by its last operation, by the last two, and so on."""
    count: torch.Tensor | None = None
    """The whole number by which its last operation multiplied it."""
    total: torch.Tensor | None = None
    """The number by which its last operation divided it."""
    num_items: int | None = None
    """The elements that were added up before that division, if the graph shows it."""

    def is_divided_by(self, count: int) -> bool:
        """Whether it was divided by this number, last of all or before a plain number."""
        return any(abs(divisor - count) < 1e-4 * count for divisor in self.divisors)


UNSCALED = Scale()


def scale_of(loss: torch.Tensor) -> Scale:
    """What the last operations of a loss scaled it by."""
    node: Any = loss.grad_fn
    if node is None or node.name() not in (DIVISION, PRODUCT):
        return UNSCALED
    divisors: list[float] = []
    product = 1.0
    count = total = num_items = None
    for place in range(MAX_OPERATIONS):
        kind = node.name() if node is not None else ""
        factor, below = _factor(node) if kind in (DIVISION, PRODUCT) else (None, None)
        if factor is None:
            break
        node = below
        if place == 0 and kind == DIVISION:
            total, num_items = factor, _num_added(below)
        elif place == 0 and factor.dtype in (torch.int64, torch.int32):
            count = factor
        if factor.device.type != "cpu":
            break
        number = float(factor)
        if number == 0.0:
            break
        product *= number if kind == DIVISION else 1.0 / number
        divisors.append(product)
    return Scale(tuple(divisors), count, total, num_items)


def _factor(node: Any) -> tuple[torch.Tensor | None, Any]:
    """The number that a division or a product was made with, and the operation before it."""
    (first, _), (second, _) = node.next_functions
    if (first is None) == (second is None) or (first is None and node.name() == DIVISION):
        return None, None
    factor = _saved(node, "other" if second is None else "self")
    if factor is None or factor.numel() != 1 or factor.is_complex() or type(factor) is not torch.Tensor:
        return None, None
    return factor, first or second


def _saved(node: Any, name: str) -> torch.Tensor | None:
    """What the operation saved under this name; None if it was saved through hooks, where torch shows that."""
    if getattr(getattr(node, f"_raw_saved_{name}"), "unpack_hook", None) is not None:
        return None
    saved = _field(node, name)
    return saved if isinstance(saved, torch.Tensor) else None


def _field(node: Any, name: str) -> Any:
    return getattr(node, f"_saved_{name}")


def _num_added(node: Any) -> int | None:
    """The elements whose sum this is; None if it is another value than a sum."""
    for _ in range(MAX_BELOW):
        kind = node.name() if node is not None else ""
        if kind == "SumBackward0":
            return int(math.prod(_field(node, "self_sym_sizes")))
        if kind in ("NllLossBackward0", "NllLoss2DBackward0"):
            target = _saved(node, "target") if _field(node, "reduction") == SUM else None
            return None if target is None else target.numel()
        if kind not in SAME_VALUE:
            return None
        node = next((below for below, _ in node.next_functions if below is not None), None)
    return None


class StepLoss:
    """The loss of a step out of those of its micro-batches; remembers what the loop did in the steps before."""

    def __init__(self) -> None:
        self._usual_count = 1
        self._last_total: torch.Tensor | None = None

    @property
    def may_rescale(self) -> bool:
        """Whether a loss alone in its step may have to be scaled."""
        return self._usual_count > 1

    def of(self, losses: Sequence[torch.Tensor], scales: Sequence[Scale]) -> torch.Tensor | None:
        """The mean of the micro-batches, without what they were scaled by."""
        counts = [scale.count for scale in scales if scale.count is not None]
        if losses and len(counts) == len(losses):
            return _sum(losses) / _sum(counts).clamp(min=1.0)  # a sign or a flag counts nothing
        number = len(losses)
        are_shares = number > 1 and (self._are_shares(scales) or _add_up_to_one(scales))
        if number > 1 and all(scale.is_divided_by(number) for scale in scales):
            self._usual_count = number
        elif are_shares:
            return _sum(losses)
        usual = self._usual_count
        pairs = zip(losses, scales, strict=True)
        return mean([loss * usual if usual > 1 and scale.is_divided_by(usual) else loss for loss, scale in pairs])

    def _are_shares(self, scales: Sequence[Scale]) -> bool:
        """Whether all were divided by one number that counts the whole step."""
        totals = [scale.total for scale in scales if scale.total is not None]
        if len(totals) < len(scales) or len({_key(total) for total in totals}) > 1:
            return False
        total, before = totals[0], self._last_total
        self._last_total = total  # kept, so that no other tensor gets its place in memory
        if total.device.type == "cpu":
            if not float(total).is_integer():
                return False
            items = [scale.num_items for scale in scales if scale.num_items is not None]
            if items and float(total) in items:
                return False
            if len(items) == len(scales) and float(total) > max(items):
                return True
            return before is not None and _key(before) != _key(total)
        return before is None or _key(before) != _key(total)


def _add_up_to_one(scales: Sequence[Scale]) -> bool:
    """Whether each was weighted by its part of the step."""
    depth = min(len(scale.divisors) for scale in scales)
    return any(abs(sum(1.0 / scale.divisors[place] for scale in scales) - 1.0) < 1e-4 for place in range(depth))


def mean(losses: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """The mean of losses that may be of several types and devices; None of none."""
    if len(losses) < 2:
        return losses[0] if losses else None
    return _sum(losses) / len(losses)


def _sum(numbers: Sequence[torch.Tensor]) -> torch.Tensor:
    device = numbers[0].device
    plain = [number.detach().reshape(()).to(device, torch.float32, non_blocking=True) for number in numbers]
    return plain[0] if len(plain) == 1 else torch.stack(plain).sum()


def _key(total: torch.Tensor) -> float | int:
    """One and the same for one number: its value where that is at hand, else its place in memory."""
    return float(total) if total.device.type == "cpu" else total.data_ptr()
