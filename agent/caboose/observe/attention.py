"""The largest attention logit that queries and keys could give, from their norms, on sampled steps.

Design
------
A logit is the product of a query and a key, at most the product of their norms. The largest norms of a head's queries
and keys bound its logits without a product of all pairs. Batch and positions are subsampled, heads never. It is read
from the arguments of torch's functions of attention. Where a module computes the softmax itself, the logits are there,
and the largest one is read. Kernels of other libraries are not seen, nor are tensors that are distributed over ranks:
their rows have no number.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional as F

from caboose.tensors.readable import own_part

MAX_BATCH, MAX_POSITIONS = 4, 128
"""Samples and positions of one call that are read."""
Found = tuple[torch.Tensor, torch.Tensor]
"""The largest logit of all heads, and its head."""


def of_dot_product(
    query: torch.Tensor, key: torch.Tensor, _value: Any = None, *_: Any, scale: float | None = None, **__: Any
) -> Found | None:
    """Of `scaled_dot_product_attention`."""
    if query.dim() < 3 or key.dim() != query.dim() or query.is_nested or key.is_nested or not query.numel():
        return None
    heads, shared = _largest_norms(query), _largest_norms(key)
    if len(heads) != len(shared):  # several heads share a key
        if not len(shared) or len(heads) % len(shared):
            return None
        shared = shared.repeat_interleave(len(heads) // len(shared))
    return _largest(heads * shared * (1.0 / math.sqrt(query.shape[-1]) if scale is None else abs(scale)))


def of_multihead(
    query: torch.Tensor,
    key: torch.Tensor,
    _value: torch.Tensor,
    width: int,
    num_heads: int,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    *_: Any,
    **__: Any,
) -> Found | None:
    """Of `multi_head_attention_forward`, which has positions first and projects within."""
    if weight is None or query.dim() != 3 or query.is_nested or not query.numel() or width % num_heads:
        return None
    norms = []
    for number, source in enumerate((query, key)):
        rows = slice(number * width, (number + 1) * width)
        part = _sparse(source.detach().transpose(0, 1), 0, 1)
        projected = F.linear(part, weight.detach()[rows], None if bias is None else bias.detach()[rows])
        norms.append(_largest_norms(projected.reshape(*part.shape[:2], num_heads, -1).transpose(1, 2)))
    return _largest(norms[0] * norms[1] / math.sqrt(width // num_heads))


def of_softmax(logits: torch.Tensor, *_: Any, **__: Any) -> Found | None:
    """Of the softmax of a module that computes attention itself: samples, heads, queries, keys."""
    if logits.dim() != 4 or logits.is_nested or not logits.numel():
        return None
    return _largest(_sparse(logits.detach(), 0, 2).amax(dim=(0, 2, 3)).to(torch.float32).clamp(min=0.0))


ATTENTION: Mapping[Any, Callable[..., Found | None]] = {
    F.scaled_dot_product_attention: of_dot_product,
    F.multi_head_attention_forward: of_multihead,
}
SOFTMAX = frozenset({F.softmax, torch.softmax, torch.Tensor.softmax})


def is_attention(module: torch.nn.Module | None) -> bool:
    """Whether a module's class says that it computes attention."""
    return module is not None and "attention" in type(module).__name__.lower()


def _is_whole(tensor: torch.Tensor) -> bool:
    """Whether a tensor can be read, and is not distributed."""
    return not hasattr(tensor, "placements") and own_part(tensor, "attention") is not None


def _sparse(tensor: torch.Tensor, batch: int, positions: int) -> torch.Tensor:
    """Every so many samples and positions of a tensor, without a copy."""
    for dimension, most in ((batch, MAX_BATCH), (positions, MAX_POSITIONS)):
        step = -(-tensor.shape[dimension] // most)
        if step > 1:
            tensor = tensor[(slice(None),) * dimension + (slice(None, None, step),)]
    return tensor


def _largest_norms(vectors: torch.Tensor) -> torch.Tensor:
    """The largest norm of each head; the last three dimensions are heads, positions, elements."""
    vectors = vectors.detach()
    vectors = vectors.unsqueeze(0) if vectors.dim() == 3 else vectors.flatten(0, -4)
    norms: torch.Tensor = torch.linalg.vector_norm(_sparse(vectors, 0, 2), dim=-1, dtype=torch.float32)
    return norms.amax(dim=(0, 2))


def _largest(heads: torch.Tensor) -> Found:
    found = heads.max(dim=0)
    return found.values, found.indices.to(torch.float32)


class AttentionLogits:
    """What was read in one step; rows are those of the table of modules."""

    def __init__(self) -> None:
        self._found: dict[int, Found] = {}

    def see(self, row: int, read: Callable[..., Found | None], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """One call; where tensors are distributed nothing is read: that would take a collective."""
        given = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
        if row in self._found or not all(map(_is_whole, given)):
            return
        found = read(*args, **kwargs)
        if found is not None:
            self._found[row] = found

    def forget(self) -> None:
        """Drops what was collected and not taken."""
        self._found = {}

    def take(self) -> tuple[list[int], dict[str, torch.Tensor]]:
        """The rows that were seen, and an array of each statistic."""
        found, self._found = self._found, {}
        if not found:
            return [], {}
        largest, heads = zip(*found.values(), strict=True)
        return list(found), {"attention_logit": torch.stack(largest), "attention_head": torch.stack(heads)}
