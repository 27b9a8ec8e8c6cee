"""What the loss is made of: its kind, its classes, its targets, and mistakes that its autograd graph shows.

Design
------
It is read where the first backward of a sampled step begins: by then the loss is complete, however the loop computes it
and whatever it passes to the monitor, and the graph still has the targets that its last operations saved. Only the top
of the graph is walked, down to the first operation that is a loss, over at most `MAX_NODES` nodes.

The number of classes is a fact about the model only where the model's last weights give the logits: the loss of pairs
has as many candidates as the batch has samples, so it is no measure across batches of other sizes. A loss of several
terms tells less: its kinds are listed, its targets are not read.

A saved tensor may have hooks (activation checkpointing computes it again, and only once), so it must not be unpacked
here. `register_hooks` refuses such a tensor, and else passes the tensor on: that is how the targets are read. Nothing
waits for the device.
"""

from collections import deque
from dataclasses import dataclass
from typing import Any

import torch

from caboose.observe.step_vector import StepVector
from caboose_wire.fields import Scalar

MAX_NODES = 64
MAX_TARGETS = 8_192
"""Targets of which the commonest class, or the variance, is taken."""
ENOUGH = 3
"""Targets per class from which their entropy is known."""
KINDS = {
    "NllLossBackward0": "cross_entropy",
    "NllLoss2DBackward0": "cross_entropy",
    "MseLossBackward0": "squared_error",
    "SmoothL1LossBackward0": "smooth_l1",
    "HuberLossBackward0": "huber",
    "BinaryCrossEntropyBackward0": "binary_cross_entropy",
    "BinaryCrossEntropyWithLogitsBackward0": "binary_cross_entropy",
    "KlDivBackward0": "divergence",
}
"""By the name of the node."""
LOG_SOFTMAX = "LogSoftmaxBackward0"
VIEWS = (
    *("View", "UnsafeView", "ReshapeAlias", "Transpose", "Permute", "TBackward", "Squeeze", "Unsqueeze", "Slice"),
    *("Select", "Clone", "ToCopy", "Alias", "Index"),
)
"""Beginnings of the names of nodes that only move numbers."""
PRODUCTS = ("AddmmBackward0", "MmBackward0", "LinearBackward0", "ConvolutionBackward0", "BmmBackward0")
MEAN = 1
"""The reduction that is the default."""


@dataclass(frozen=True)
class Found:
    """A node that is a loss, and the sign by which it counts; 0 where that is not known."""

    node: Any
    kind: str
    sign: int


class LossGraph:
    """Reads the losses of one model."""

    def __init__(self) -> None:
        self.facts: dict[str, Scalar] = {}
        """`loss_kind`, `num_classes`, `loss_of_pairs`, `label_smoothing` and `loss_mistake`, where seen."""
        self._has_read = False

    def read(self, roots: Any, vector: StepVector) -> bool:
        """Takes what the first root shows; whether there are facts that were not known."""
        root = roots[0] if isinstance(roots, list | tuple) and roots else roots
        node = root.grad_fn if isinstance(root, torch.Tensor) else None
        found = [] if node is None else _losses(node)
        is_single = len(found) == 1
        if is_single:
            _add_targets(found[0], vector)
        if self._has_read or not found:
            return False
        self._has_read = True
        self.facts["loss_kind"] = ", ".join(sorted({one.kind for one in found}))
        if is_single:
            self.facts |= _classes(found[0]) | _pairs(found[0]) | _label_smoothing(node)
            mistake = _mistake(found[0])
            if mistake:
                self.facts["loss_mistake"] = mistake
        return True


def _losses(root: Any) -> list[Found]:
    """The nodes that are losses, nearest to the root first."""
    waiting: deque[tuple[Any, int]] = deque([(root, 1)])
    seen, found = {root}, []
    while waiting and len(seen) <= MAX_NODES:
        node, sign = waiting.popleft()
        kind = KINDS.get(node.name())
        if kind is not None:
            found.append(Found(node, kind, sign))
            continue
        for place, (below, _) in enumerate(node.next_functions):
            if below is not None and below not in seen:
                seen.add(below)
                waiting.append((below, sign * _sign(node, place)))
    return found


def _sign(node: Any, place: int) -> int:
    """How a node passes on the sign of its input; 0 where that is not known."""
    name = node.name()
    if name == "NegBackward0" or (name == "SubBackward0" and place == 1):
        return -1
    if name == "MulBackward0" and place == 0 and node.next_functions[1][0] is None:
        other = node._saved_other  # noqa: SLF001 - what a loss is multiplied by; torch has no other name for it
        is_number = isinstance(other, torch.Tensor) and other.dim() == 0 and other.is_cpu
        return (1 if bool(other > 0) else -1) if is_number else 0
    if name == "MulBackward0":
        return 0
    return 0 if name in ("DivBackward0", "RsubBackward1") else 1


def _label_smoothing(root: Any) -> dict[str, Scalar]:
    """The label smoothing of torch's cross entropy: a sum of two terms, of which one is the loss without, scaled."""
    waiting, num = deque([root]), 0
    while waiting and num < MAX_NODES:
        node, num = waiting.popleft(), num + 1
        below = [one for one, _ in node.next_functions if one is not None]
        if node.name() == "AddBackward0" and [one.name() for one in below] == ["MulBackward1"] * 2:
            plain = below[0].next_functions[0][0]
            share = below[0]._saved_other  # noqa: SLF001 - what it is multiplied by; torch has no other name for it
            if plain is not None and KINDS.get(plain.name()) == "cross_entropy" and isinstance(share, float):
                return {"label_smoothing": round(1.0 - share, 6)}
        waiting.extend(below)
    return {}


def _below_views(node: Any) -> Any:
    """The first node from this one on that does more than to move numbers."""
    for _ in range(MAX_NODES):
        if node is None or not node.name().startswith(VIEWS):
            break
        node = node.next_functions[0][0] if node.next_functions else None
    return node


def _input(node: Any) -> Any:
    return _below_views(node.next_functions[0][0]) if node.next_functions else None


def _mistake(found: Found) -> str:
    """softmax_twice, over_batch, no_log or negated; empty where none is seen."""
    below = _input(found.node)
    name = "" if below is None else below.name()
    if found.kind == "cross_entropy":
        before = _input(below) if name == LOG_SOFTMAX else None
        if before is not None and before.name() == "SoftmaxBackward0":
            return "softmax_twice"
        if name == "SoftmaxBackward0":
            return "no_log"
        if name == LOG_SOFTMAX and _is_over_batch(found.node.next_functions[0][0]):
            return "over_batch"
    elif found.node.name() == "BinaryCrossEntropyWithLogitsBackward0" and name == "SigmoidBackward0":
        return "softmax_twice"
    return "negated" if found.sign < 0 else ""


def _is_over_batch(node: Any) -> bool:
    """Whether a softmax of logits that weights made is over the samples. Pairs of samples have no such weights."""
    if node.name() != LOG_SOFTMAX or node._saved_dim != 0:  # noqa: SLF001 - torch has no other name for it
        return False
    before = _input(node)
    is_flat = len(node._input_metadata[0].shape) == 2  # noqa: SLF001 - of the operation's output, as below
    return is_flat and before is not None and before.name() in PRODUCTS and _has_weight(before)


def _classes(found: Found) -> dict[str, Scalar]:
    """The number of classes, where the model's last weights make the logits."""
    below = _input(found.node)
    if found.kind != "cross_entropy" or below is None or below.name() not in (LOG_SOFTMAX, "SoftmaxBackward0"):
        return {}
    shape = below._input_metadata[0].shape  # noqa: SLF001 - of the operation's output; torch has no other name for it
    before = _input(below)
    if before is not None and before.name() == "SoftmaxBackward0":
        before = _input(before)
    if len(shape) < 2 or before is None or before.name() not in PRODUCTS or not _has_weight(before):
        return {}
    classes = int(shape[1])
    return {"num_classes": classes} if classes >= 2 else {}


def _pairs(found: Found) -> dict[str, Scalar]:
    """Whether the samples of the batch are each other's classes: as many logits as samples, made by no weights."""
    below = _input(found.node)
    if found.kind != "cross_entropy" or below is None or below.name() != LOG_SOFTMAX or _classes(found):
        return {}
    shape = below._input_metadata[0].shape  # noqa: SLF001 - of the operation's output; torch has no other name for it
    before = _input(below)
    is_square = len(shape) == 2 and shape[0] == shape[1] > 2
    has_weight = before is not None and before.name() in PRODUCTS and _has_weight(before)
    return {"loss_of_pairs": True} if is_square and not has_weight else {}


def _has_weight(node: Any) -> bool:
    """Whether a product's second factor is a parameter."""
    for below, _ in node.next_functions:
        weight = getattr(_below_views(below), "variable", None)
        if weight is not None and weight.dim() >= 2:
            return True
    return False


def _add_targets(found: Found, vector: StepVector) -> None:
    """What the targets are: how many are not finite, their variance over the batch, the share of the commonest."""
    target = _saved(found.node, "_raw_saved_target")
    if target is None or type(target) is not torch.Tensor or not target.numel() or target.is_sparse:
        return
    with torch.no_grad():
        if found.kind == "cross_entropy":
            log_chances = found.node.next_functions[0][0]
            if log_chances is not None and not target.is_floating_point():
                shape: tuple[int, ...] = tuple(log_chances._input_metadata[0].shape)  # noqa: SLF001 - as above
                if len(shape) >= 2:
                    _add_classes(target, shape[1], vector)
            return
        if not target.is_floating_point():
            return
        vector.add_scalar("target_bad", (~torch.isfinite(target)).sum())
        is_plain = found.kind == "squared_error" and found.node._saved_reduction == MEAN  # noqa: SLF001
        if is_plain and found.sign == 1 and target.dim() and len(target) > 1:
            vector.add_scalar("target_variance", target[:MAX_TARGETS].float().var(dim=0, unbiased=False).mean())


def _add_classes(target: torch.Tensor, classes: int, vector: StepVector) -> None:
    """The share of the commonest class and, of enough targets, the classes' entropy; others are padding.

    Few samples show too low an entropy: half of the number of classes seen, over that of the targets, corrects it.
    """
    some = target.reshape(-1)[:MAX_TARGETS]
    is_class = (some >= 0) & (some < classes)
    counts = torch.zeros(classes, device=some.device)
    counts.scatter_add_(0, some.clamp(0, classes - 1), is_class.to(counts.dtype))
    num = counts.sum().clamp(min=1.0)
    shares = counts / num
    vector.add_scalar("target_share", shares.max())
    if len(some) >= ENOUGH * classes:
        missing = ((counts > 0).sum() - 1) / (2.0 * num)
        vector.add_scalar("target_entropy", torch.special.entr(shares).sum() + missing)


def _saved(node: Any, name: str) -> torch.Tensor | None:
    """A saved tensor that has no hooks; None where it has some, or where there is none."""
    seen: list[torch.Tensor] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        seen.append(tensor)
        return tensor

    raw = getattr(node, name, None)
    if raw is None:
        return None
    try:
        raw.register_hooks(note, lambda tensor: tensor)
    except RuntimeError:
        return None
    return seen[0] if seen else None
