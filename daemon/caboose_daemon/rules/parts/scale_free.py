"""Optimizers whose step does not depend on the size of the gradient: a factor on all gradients changes nothing."""

from collections.abc import Collection

SCALE_FREE = frozenset(
    {"adam", "adamw", "nadam", "radam", "adamax", "adafactor", "adagrad", "rmsprop", "rprop", "lion", "muon", "lamb"}
    | {"fusedadam", "cpuadam", "deepspeedcpuadam", "fusedlamb", "adamw8bit", "adam8bit", "pagedadamw", "pagedadamw8bit"}
    | {"adan", "adabelief", "sophia", "sophiag", "shampoo", "soap", "signsgd", "adamwschedulefree", "distmuonadamw"}
)


def is_scale_free(optimizers: Collection[str]) -> bool:
    """Whether all of these are; False where none is known."""
    return bool(optimizers) and all(name.strip().lower() in SCALE_FREE for name in optimizers)
