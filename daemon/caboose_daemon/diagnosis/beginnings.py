"""What a case tells about a run's first steps: whether they threw it off, and whether its gradients have gone since.

Design
------
A run that stands still because it was thrown off looks, at its end, like one that never moved: small gradients, small
updates, a flat loss. Only the beginning tells them apart. It is asked of the rule that follows it, and of the curves
where they still reach back to it; None where neither does.
"""

from typing import NamedTuple

import numpy as np

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.rules.parts.blown_up_start import BEYOND_NOISE, CALM, NOTHING_LEARNED, is_back

EARLY = 300
"""Points that count as the beginning."""
JUMPED = 1.5
"""How many times the first loss a jump reaches."""
MIN_POINTS = 100
LATELY = 50
FADED = 10.0
"""How many times the later gradient norm that of the beginning must have been."""


class Jump(NamedTuple):
    """A loss that was thrown up in the first steps."""

    first: float
    peak: float


class Fading(NamedTuple):
    """A gradient norm that was there once."""

    then: float
    now: float


def is_in_sight(case: Case) -> bool:
    """Whether the curves reach back to the first step of the run."""
    return bool(len(case.steps)) and case.steps[0] <= 1 + case.gap and "resume" not in case.incident.regimes


def jump(case: Case) -> Jump | None:
    """How the loss was thrown up soon after the start: as the rule says, or in a run that learned nothing since."""
    first, peak = case.most("lr_too_high", "first"), case.most("lr_too_high", "thrown_to")
    if first is not None and peak is not None:
        return Jump(first, peak)
    if not is_in_sight(case):
        return None
    losses = case.curve("loss")
    losses = losses[np.isfinite(losses)]
    if len(losses) < MIN_POINTS or losses[0] <= 0:
        return None
    second, peak = np.sort(losses[:EARLY])[-2:].tolist()
    level, scatter = float(np.mean(losses[-LATELY:])), float(np.std(losses[-LATELY:]))
    if second < JUMPED * losses[0] or level < NOTHING_LEARNED * losses[0]:
        return None
    before = losses[: int(np.argmax(losses >= JUMPED * losses[0]))]
    has_healed = len(before) >= CALM and is_back(level, scatter, float(np.median(before[-CALM:])))
    return None if has_healed or second - level < BEYOND_NOISE * scatter else Jump(float(losses[0]), peak)


def fading(case: Case) -> Fading | None:
    """How far the gradient norm has sunk from what it reached, on one step in ten at least, in the beginning."""
    norms = case.curve("grad_norm")
    norms = norms[np.isfinite(norms)]
    if not is_in_sight(case) or len(norms) < MIN_POINTS:
        return None
    then, now = float(np.quantile(norms[:MIN_POINTS], 0.9)), float(np.median(norms[-LATELY:]))
    return Fading(then, now) if then > FADED * now else None
