"""Weight statistics on sampled steps: the update-to-weight ratio and the replica fingerprint.

Design
------
The ratio is that of the real update: a small subsample of each layer (see `subsample`) is taken before and after the
optimizer's step, so no copy of the parameters is needed.

The fingerprint is bit-exact. Each layer's bits, read as integers, are summed; the sums are combined with odd
multipliers, modulo 2^64. A flipped bit changes its layer's sum by a power of two, which no odd factor can turn into
zero, so it changes the result; equal replicas give equal fingerprints on every rank.
"""

from collections.abc import Sequence

import torch

from caboose.tensors.placement import own
from caboose.tensors.subsample import sample

INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
PART = 1 << 18
"""Elements that are summed at a time on a CPU: torch makes a wider copy of them, and new memory for a large one costs
more than the sum."""
MULTIPLIER = 0x9E3779B97F4A7C15
"""2^64 over the golden ratio, made odd: its odd powers spread the layers."""


def update_ratio(before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """For each row, the length of the change over the length before; -1 where that was zero."""
    size = torch.linalg.vector_norm(before, dim=1)
    moved = torch.linalg.vector_norm(after - before, dim=1)
    return torch.where(size > 0, moved / size, -torch.ones_like(size))


def sample_weights(parameters: Sequence[torch.Tensor]) -> torch.Tensor:
    """A subsample of each parameter, as a matrix with its own memory."""
    return sample([own(parameter) for parameter in parameters])


class Fingerprint:
    """Fingerprints of a fixed list of parameters."""

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        self._parameters = list(parameters)
        multipliers = [pow(MULTIPLIER, 2 * i + 1, 2**64) for i in range(len(self._parameters))]
        signed = [m - 2**64 if m >= 2**63 else m for m in multipliers]
        places = [p.device for p in self._parameters]
        here = next((place for place in places if place.type != "cpu"), torch.device("cpu"))
        self._is_spread = len(set(places)) > 1
        self._multipliers = torch.tensor(signed, dtype=torch.int64, device=here)

    def take(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The fingerprint as four 16-bit numbers, lowest first, and 24 bits of each layer; all exact in float32."""
        bits = [_bits(parameter) for parameter in self._parameters]
        if self._is_spread:
            bits = [each.to(self._multipliers.device, non_blocking=True) for each in bits]
        sums = torch.stack(bits)
        whole = (sums * self._multipliers).sum()
        shifts = torch.arange(0, 64, 16, device=whole.device)
        words = (whole >> shifts) & 0xFFFF
        folded = (sums ^ (sums >> 24) ^ (sums >> 48)) & 0xFFFFFF
        return words.to(torch.float32), folded.to(torch.float32)


def _bits(parameter: torch.Tensor) -> torch.Tensor:
    """A sum has no order, so the elements are read as they are in memory, without the gaps between them."""
    tensor = own(parameter.detach())
    bits = tensor.view(INTEGERS[tensor.element_size()])
    if bits.is_cpu and bits.numel() > PART and bits.is_contiguous():
        return torch.stack([part.sum(dtype=torch.int64) for part in torch.split(bits.view(-1), PART)]).sum()
    return bits.sum(dtype=torch.int64)
