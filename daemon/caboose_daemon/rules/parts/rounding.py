"""Whether the numbers of a log are rounded so coarsely that equal ones mean little.

Design
------
The number of digits, decimal and binary, is that of the finest value so far. A number in full precision has many; a
few numbers with two decimals each may be exact by chance, so several different ones are needed.
"""

import math
from decimal import Decimal

MIN_DIFFERENT = 3
COARSE = 1e-3
"""Size of the last decimal as a share of the value, above which neighbouring values are often equal."""

COARSE_BITS = 11
"""Binary digits of float16; bfloat16 has 8. A loss that was computed in them is often equal to the last one."""


class Rounding:
    """The decimals of one series."""

    def __init__(self) -> None:
        self._num_decimals = 0
        self._num_bits = 0
        self._different: set[float] = set()

    def add(self, value: float) -> None:
        """Takes a finite value."""
        exponent = Decimal(repr(value)).as_tuple().exponent
        if isinstance(exponent, int):
            self._num_decimals = max(self._num_decimals, -exponent)
        self._num_bits = max(self._num_bits, _num_bits(value))
        if len(self._different) < MIN_DIFFERENT:
            self._different.add(value)

    def is_coarse_at(self, value: float) -> bool:
        """Whether values of this size are often equal by rounding alone."""
        if len(self._different) < MIN_DIFFERENT:
            return False
        return self._num_bits <= COARSE_BITS or 10.0**-self._num_decimals > COARSE * abs(value)


def _num_bits(value: float) -> int:
    """Binary digits that the value needs."""
    mantissa = int(math.ldexp(abs(math.frexp(value)[0]), 53))
    return mantissa.bit_length() - (mantissa & -mantissa).bit_length() + 1 if mantissa else 0
