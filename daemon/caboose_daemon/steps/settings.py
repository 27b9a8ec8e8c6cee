"""Reads the settings of a run and the fields of its events, which may be anything.

The user's settings are copied from a configuration that may have anything: a data set of 0 samples, one class, -1 steps
for "no end". Such a number counts as not given, for rules and causes alike. The fields of an event are read by the
functions here and in no other way: True is no number, and a number that no count can be counts as not given.
"""

import math
from collections.abc import Mapping

from caboose_daemon.steps.bounds import infinite_beyond
from caboose_wire.fields import MAX_COUNT, Scalar

LEAST: Mapping[str, float] = {"num_classes": 2.0, "total_steps": 1.0, "batch_size": 1.0, "dataset_length": 1.0}
"""The smallest plausible value of a setting."""


def number(name: str, *sources: Mapping[str, Scalar]) -> float | None:
    """The first usable number under this name; None where there is none."""
    for settings in sources:
        value = as_number(settings.get(name))
        if value is not None and math.isfinite(value) and value >= LEAST.get(name, -math.inf):
            return value
    return None


def as_count(value: Scalar) -> int | None:
    """A whole number that is not negative; None for anything else."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_COUNT:
        return value
    return None


def as_number(value: Scalar) -> float | None:
    """A number, infinite if it is too large to calculate with; None for anything else."""
    return infinite_beyond(float(value)) if isinstance(value, int | float) and not isinstance(value, bool) else None


def as_text(value: Scalar) -> str:
    """A text; empty for anything else."""
    return value if isinstance(value, str) else ""


def as_numbers(fields: Mapping[str, Scalar]) -> dict[str, float]:
    """All numbers among the fields of an event."""
    found = {name: as_number(value) for name, value in fields.items()}
    return {name: value for name, value in found.items() if value is not None}
