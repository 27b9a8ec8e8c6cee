"""What of someone else's tensor can be read: an activation, a batch or a loss may be of any kind.

Design
------
A statistic of a distributed tensor would be a collective, and the ranks do not look at the same steps: a rank that
looked alone would wait for ever. So only what lies on this rank is read. What has no extremes to be asked for
(eight-bit floats, sparse and nested tensors, those that `torch.func` wraps) is left out; that is no failure.
"""

import torch

from caboose.placement import own

REAL = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
ORDERED = REAL | {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
"""What `aminmax` knows, on every kind of device."""


def part(tensor: torch.Tensor) -> torch.Tensor | None:
    """This rank's own part of it, complex numbers as pairs of real ones; None if it cannot be read."""
    if any(placement.is_partial() for placement in getattr(tensor, "placements", ())):
        return None  # a summand: its statistics say nothing about the sum
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        return None
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return None
    mine = own(tensor.detach())
    return mine if mine.dtype in ORDERED else None


def whole(tensor: torch.Tensor) -> torch.Tensor | None:
    """All of it, as far as this rank has it without a collective; None if it has not."""
    placements = getattr(tensor, "placements", None)
    if placements is None:
        return tensor.detach()
    if not all(placement.is_replicate() for placement in placements):
        return None
    local: torch.Tensor = tensor.detach().to_local()  # type: ignore[attr-defined]  # a DTensor has placements, and this
    return local
