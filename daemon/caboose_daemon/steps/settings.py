"""Numbers among what the user and the agent told of a run, as far as they can be what their name says.

What the user hands over at attach is copied from a configuration that may hold anything: a data set of 0 samples, one
class, -1 steps for "no end". Such a number is as good as none, and is sorted out here, for rules and causes alike.
"""

import math
from collections.abc import Mapping

from caboose_wire.fields import Scalar

LEAST: Mapping[str, float] = {"num_classes": 2.0, "total_steps": 1.0, "batch_size": 1.0, "dataset_length": 1.0}
"""What a setting is at least, where it says anything; between fewer than two classes there is no choice."""


def number(name: str, *told: Mapping[str, Scalar]) -> float | None:
    """The first usable number under this name; None where there is none."""
    for settings in told:
        value = settings.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if math.isfinite(value) and value >= LEAST.get(name, -math.inf):
            return float(value)
    return None
