"""The statistics of a layer or a module that a sample keeps, in the order in which the page lists them."""

from typing import Literal

import msgspec

Of = Literal["layer", "module"]


class Stat(msgspec.Struct, frozen=True):
    """One statistic; its name is what the API, the page and the journal call it."""

    name: str
    of: Of
    array: str
    """Its name on the wire."""
    dtype: str
    """Its type in the journal, little-endian. Half precision is enough for shares; norms span many decades."""
    bit: int
    """Its bit in the mask of what a sample has shown."""
    needs: str
    """The name under which an agent reports that it cannot see this."""


STATS = {
    stat.name: stat
    for stat in (
        Stat("grad_norm", "layer", "grad_norm", "<f4", 1, "gradients"),
        Stat("update_ratio", "layer", "update_ratio", "<f4", 2, "weights"),
        Stat("weight_norm", "layer", "weight_norm", "<f4", 4, "weights"),
        Stat("grad_zeros", "layer", "grad_zero_fraction", "<f2", 8, "gradients"),
        Stat("activation_std", "module", "activation_std", "<f4", 16, "activations"),
        Stat("dead", "module", "activation_dead", "<f2", 32, "activations"),
        Stat("saturated", "module", "activation_saturated", "<f2", 64, "activations"),
        Stat("zeros", "module", "activation_zero_fraction", "<f2", 128, "activations"),
    )
}
"""The bits are in journals: a new statistic takes the next one, none is used again."""
ORDER, ORDER_DTYPE, NOT_CALLED = "order", "<u2", 0xFFFF
"""The column with each module's place in the order of execution."""
