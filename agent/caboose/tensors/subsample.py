"""A small, representative subsample of each of many tensors, and statistics of all of them at once.

Design
------
Statistics other than norms read `WIDTH` elements per tensor: a matrix of tensors x WIDTH, however large the tensors
are. Every statistic is then one operation over the matrix, so the number of operations does not grow with the number of
layers, and temporaries are bounded by `CHUNK` rows at a time. A tensor smaller than WIDTH repeats its elements, which
leaves shares and means unchanged.

The elements are a lattice over the tensor's memory, seen through one strided view: no copy and no index. One stride
alone visits few columns: that of a 4096 x 4096 matrix is a multiple of the row's length, and would read a single
column. So the two strides of the lattice are searched once per shape (`lattice`), such that rows, columns and the
columns' residues are all visited evenly.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

HIGH, WIDE = 32, 16
WIDTH = HIGH * WIDE
NUM_TRIED = 24
"""Pairs of strides that are tried for a shape, once."""
BANDS = 16
RESIDUES = (2, 3, 4, 8, 64)
"""Periods that matrices have: pairs of a rotary embedding, kernels of convolutions, heads."""
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
    return _row(tensor).to(torch.float32, copy=True).view(WIDTH)


def _row(tensor: torch.Tensor) -> torch.Tensor:
    """HIGH x WIDE elements."""
    count = tensor.numel()
    if count < WIDTH:
        flat = tensor.reshape(-1)
        flat = flat.repeat(-(-WIDTH // count))[:WIDTH] if count else flat.new_zeros(WIDTH)
        return flat.view(HIGH, WIDE)
    if not tensor.is_contiguous():
        return _row_of_view(tensor)
    # One view, not a chain of reshape and slices: with hundreds of layers the number of calls dominates.
    return tensor.as_strided((HIGH, WIDE), lattice(count, _row_length(tensor.shape)), tensor.storage_offset())


def _row_of_view(tensor: torch.Tensor) -> torch.Tensor:
    """Of a transposed or sliced tensor: the same elements as if it were contiguous, without a copy of it."""
    high, wide = lattice(tensor.numel(), _row_length(tensor.shape))
    place = (np.arange(HIGH) * high)[:, None] + np.arange(WIDE) * wide
    where = tuple(torch.from_numpy(axis) for axis in np.unravel_index(place, tensor.shape))
    return tensor[where]


def _row_length(shape: Sequence[int]) -> int:
    """Elements of one row of a matrix; of a convolution's weights, of one output channel."""
    if len(shape) < 2:
        return 1
    return shape[-1] if len(shape) == 3 else int(np.prod(shape[1:]))


@lru_cache(maxsize=4096)
def lattice(count: int, row: int) -> tuple[int, int]:
    """The two strides, in elements, for `count` elements in rows of `row`: of those tried, the most even ones."""
    random = np.random.default_rng((count, row))
    high, wide = count // HIGH, count // WIDTH
    tried = [(high, wide)]
    for _ in range(NUM_TRIED):
        less = random.integers(0, max(1, min(row, high // 8)) + 1), random.integers(0, max(1, min(row, wide // 4)) + 1)
        tried.append((max(1, high - int(less[0])), max(1, wide - int(less[1]))))
    return min(tried, key=lambda strides: _unevenness(strides, count, row))


def _unevenness(strides: tuple[int, int], count: int, row: int) -> float:
    """Squared deviations from an even occupancy of rows, columns and the columns' residues, in expected counts."""
    place = ((np.arange(HIGH) * strides[0])[:, None] + np.arange(WIDE) * strides[1]).ravel()
    rows, columns = place // row, place % row
    deviation = _deviation(rows, -(-count // row), BANDS) + _deviation(columns, row, BANDS)
    for period in RESIDUES:
        if period < row:
            deviation += _deviation(columns % period, period, period)
    return deviation


def _deviation(values: NDArray[np.int64], size: int, num_bands: int) -> float:
    """Chi-square of the values' bands, each with its share of `size`."""
    if size < 2:
        return 0.0
    bands = min(num_bands, size)
    expected = len(values) / bands
    found = np.bincount(values * bands // size, minlength=bands)
    return float(((found - expected) ** 2).sum() / expected)


def _alike(rows: list[torch.Tensor]) -> torch.Tensor:
    if any(r.dtype is not torch.float32 for r in rows):
        rows = [r.to(torch.float32) for r in rows]
    return torch.stack(rows).view(len(rows), WIDTH)


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
