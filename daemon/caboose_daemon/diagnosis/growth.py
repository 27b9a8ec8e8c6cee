"""What a case tells of the steps before its first bad number: whether loss or gradient norm had grown towards it.

Design
------
Rules know a level after some twenty steps; a run that breaks before has none, and only `non_finite` speaks. Its curves
tell enough: what overflows grows step by step until it does, and what is undefined (a logarithm of zero, a NaN in a
batch) comes out of calm. Two steps are enough to see it, so what is asked of them is much: the last value must stand
ten times above everything in the first half of what is in sight, that is, above the untrained model's own where the
curves reach back to it. A loss that has fallen far is not grown because one batch was worse, and the slope beside a
logarithm's edge is steep for a step, so of a norm the step before the last must have grown too, where there is one.
"""

from typing import NamedTuple

import numpy as np

from caboose_daemon.diagnosis.beginnings import is_in_sight
from caboose_daemon.diagnosis.case import Case

GREW = 10.0
HUGE_NORM = 1e3
"""A gradient norm that no model begins with by design, where there was one step only: what is usual is 0.01 to 100."""


class Growth(NamedTuple):
    """How a curve came to its last finite value, in words, and by which factor."""

    text: str
    factor: float


def before_break(case: Case) -> Growth | None:
    """How loss or norm had grown before the first number that was not finite; None where neither had, or none broke."""
    broke = min((m.first.onset_step for m in case.incident.episodes if m.rule == "non_finite"), default=None)
    if broke is None:
        return None
    found = (_grown(case, name, what, broke) for name, what in (("loss", "loss"), ("grad_norm", "gradient norm")))
    return max((growth for growth in found if growth is not None), key=lambda growth: growth.factor, default=None)


def _grown(case: Case, name: str, what: str, broke: int) -> Growth | None:
    values = case.curve(name)[case.steps < broke]
    values = values[np.isfinite(values)]
    if len(values) == 1 and name == "grad_norm" and is_in_sight(case) and values[0] > HUGE_NORM:
        return Growth(f"the {what} was {values[0]:.3g} at the first step already", values[0] / HUGE_NORM)
    if len(values) < 2:
        return None
    calm = float(values[: (len(values) + 1) // 2].max())
    last = float(values[-2:].min() if name == "grad_norm" and len(values) > 3 else values[-1])
    if calm <= 0 or last < GREW * calm:
        return None
    return Growth(f"the {what} had grown from {calm:.3g} to {values[-1]:.3g} before a number broke", last / calm)
