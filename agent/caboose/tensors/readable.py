"""The part of a user's tensor that can be read: an activation, a batch or a loss may be of any kind.

Design
------
A statistic of a distributed tensor would be a collective, and the ranks do not sample the same steps: a rank alone
would wait forever. So only this rank's part is read. Tensors without extremes (eight-bit floats, sparse and nested
tensors, those that `torch.func` wraps) are left out, which is logged once per kind.
"""

import torch

from caboose.guard import left_out
from caboose.tensors.placement import own

REAL = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
ORDERED = REAL | {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
"""The types that `aminmax` supports on every device."""


def own_part(tensor: torch.Tensor, what: str) -> torch.Tensor | None:
    """This rank's part, complex numbers as pairs of real ones; None if it cannot be read."""
    if any(placement.is_partial() for placement in getattr(tensor, "placements", ())):
        return None  # a partial sum: its statistics are not those of the sum
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        left_out(f"{what} inside a torch.func transform")
        return None
    if tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_quantized:
        mine = own(tensor.detach())
        if mine.dtype in ORDERED:
            return mine
    left_out(f"{what} of {tensor.dtype} in layout {'nested' if tensor.is_nested else tensor.layout}")
    return None


def mean(loss: torch.Tensor) -> torch.Tensor | None:
    """A loss of any shape as one number; None if it cannot be read."""
    value = whole(loss)
    if value is None or value.is_complex():
        return None
    if value.numel() == 1 and value.layout is torch.strided:
        return value
    mine = own_part(value, "a loss")
    return mine.mean(dtype=torch.float32) if mine is not None and mine.numel() else None


def whole(tensor: torch.Tensor) -> torch.Tensor | None:
    """The complete tensor, if this rank has it without a collective; else None."""
    placements = getattr(tensor, "placements", None)
    if placements is None:
        return tensor.detach()
    if not all(placement.is_replicate() for placement in placements):
        return None
    local: torch.Tensor = tensor.detach().to_local()  # type: ignore[attr-defined]  # a DTensor has placements, and this
    return local


def on_host(loss: torch.Tensor) -> float | None:
    """The value of a loss that is in the host's memory, so that nothing is waited for; None if it cannot be read."""
    if loss.dim() or type(loss) is not torch.Tensor:
        readable = mean(loss)
        if readable is None:
            return None
        loss = readable
    value = loss.item()
    return float(value) if isinstance(value, float | int) else None
