"""Numbers among the settings of a run, where they are plausible.

The user's settings are copied from a configuration that may have anything: a data set of 0 samples, one class, -1 steps
for "no end". Such a number counts as not given, for rules and causes alike.
"""

import math
from collections.abc import Mapping

from caboose_wire.fields import Scalar

LEAST: Mapping[str, float] = {"num_classes": 2.0, "total_steps": 1.0, "batch_size": 1.0, "dataset_length": 1.0}
"""The smallest plausible value of a setting."""


def number(name: str, *sources: Mapping[str, Scalar]) -> float | None:
    """The first usable number under this name; None where there is none."""
    for settings in sources:
        value = settings.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if math.isfinite(value) and value >= LEAST.get(name, -math.inf):
            return float(value)
    return None
