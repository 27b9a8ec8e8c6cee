"""A small, even subsample of each of many tensors, and statistics of all of them at once.

Design
------
Statistics other than norms read `WIDTH` elements per tensor, at an even stride: a matrix of tensors x WIDTH, however
large the tensors are. Every statistic is then one operation over the matrix, so the number of operations does not grow
with the number of layers, and temporaries are bounded by `CHUNK` rows at a time. A tensor smaller than WIDTH repeats
its elements, which leaves shares and means unchanged.
"""

from collections.abc import Sequence

import torch

WIDTH = 512
CHUNK = 256
"""Rows worked on at once: 256 x 512 float32 are half a MiB, and a few such temporaries live at a time."""
BINS = 32
LOWEST = -24
"""Exponent of the first bin: bin i holds magnitudes in [2^(LOWEST+i), 2^(LOWEST+i+1)); both ends are open."""
HISTOGRAM = BINS + 2
"""Columns of a histogram: the bins, then zeros, then the share of negative elements."""


@torch.no_grad()
def sample(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """tensors x WIDTH float32, on the tensors' own device."""
    return _alike([_row(tensor) for tensor in tensors])


@torch.no_grad()
def row(tensor: torch.Tensor) -> torch.Tensor:
    """WIDTH elements of one tensor, as a copy."""
    return _row(tensor).to(torch.float32, copy=True)


def _row(tensor: torch.Tensor) -> torch.Tensor:
    count = tensor.numel()
    if count < WIDTH:
        flat = tensor.reshape(-1)
        return flat.repeat(-(-WIDTH // count))[:WIDTH] if count else flat.new_zeros(WIDTH)
    if not tensor.is_contiguous():
        tensor = tensor.contiguous()
    # One view, not a chain of reshape and slices: with hundreds of layers the number of calls dominates.
    return tensor.as_strided((WIDTH,), (count // WIDTH,), tensor.storage_offset())


def _alike(rows: list[torch.Tensor]) -> torch.Tensor:
    if any(r.dtype is not torch.float32 for r in rows):
        rows = [r.to(torch.float32) for r in rows]
    return torch.stack(rows)


def zero_fraction(matrix: torch.Tensor) -> torch.Tensor:
    """Share of exact zeros in each row."""
    return (matrix == 0).to(torch.float32).mean(dim=1)


def histogram(matrix: torch.Tensor) -> torch.Tensor:
    """rows x HISTOGRAM: the shares of magnitudes by their power of two, of zeros, and of negative elements.

    Elements that are not finite are in no bin; what is missing from the sum of bins and zeros is their share.
    """
    parts = []
    for start in range(0, matrix.shape[0], CHUNK):
        chunk = matrix[start : start + CHUNK]
        exponent = torch.frexp(chunk)[1] - 1  # frexp has its mantissa in [0.5, 1)
        bins = (exponent - LOWEST).clamp_(0, BINS - 1).to(torch.int64)
        is_zero = chunk == 0
        weight = (chunk.isfinite() & ~is_zero).to(torch.float32)
        counts = torch.zeros(chunk.shape[0], HISTOGRAM, dtype=torch.float32, device=chunk.device)
        counts[:, :BINS].scatter_add_(1, bins, weight)
        counts[:, BINS] = is_zero.sum(dim=1)
        counts[:, BINS + 1] = (chunk < 0).sum(dim=1)
        parts.append(counts)
    return torch.cat(parts) / matrix.shape[1]


def warm_up(device: torch.device) -> None:
    """Runs each operation once, at attach: its first call may take milliseconds."""
    matrix = sample([torch.ones(2 * WIDTH, device=device), torch.ones(3, device=device)])
    zero_fraction(matrix)
    histogram(matrix)
    torch.aminmax(matrix)
    torch.std_mean(matrix, dim=1)
    torch.linalg.vector_norm(matrix, dim=1)
    torch._foreach_norm([matrix, matrix], 2, dtype=torch.float32)
