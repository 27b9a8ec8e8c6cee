"""Whether a loss has stood still for three quarters of its run.

Design
------
How long a run may stand still has no unit that fits every log: a row is a step in one and an epoch in another. Its own
length is a measure for all of them. A loss that learns falls along something like a power law, so most of a fall by a
factor of four in time is left when a quarter of the run is over. A loss that does not fall from there on has stopped,
whatever it did before: it found the frequencies of its targets (a language model stands at the unigram entropy then),
or never fell at all.

"Does not fall" must be known, not only unseen. The two curves, training and validation, are fitted with straight lines
from a quarter of the run on. Neither may fall significantly, nor the training loss rise (a rise is `divergence`'s), and
both together, weighted by their precision, must fall by less than `limit`, with an error that would show half as much
again. An evaluation on fixed samples scatters less
than random batches, so it counts for more. A validation curve of few points has no known precision and is left out.
"""

import math
from collections.abc import Sequence

from caboose_daemon.rules.parts.curve import Curve, Trend, trend

PART = 4
"""The line begins after this part of the run."""
MIN_MEANS = 16
MIN_EVALUATIONS = 6
SIGNIFICANT = 2.5
ERROR = 1.5
"""Limit on the error of both lines together, as a multiple of that on the change."""
VAGUE = 4.0
"""Limit on the training loss's error, as a multiple of that on the change."""


def standstill(train: Curve, validation: Curve, limit: float, *, is_open: bool = False) -> Trend | None:
    """The line through the training loss where both have stood still; None where they fall or too little is known.

    One that is open lasts until a curve falls, significantly and by more than `limit`.
    """
    means, evaluations = train.means, validation.means
    if len(means) < MIN_MEANS:
        return None
    lines = [line := trend(means[len(means) // PART :], remembers=True)]
    if len(evaluations) >= MIN_EVALUATIONS:
        lines.append(trend(evaluations[max(1, len(evaluations) // PART) :], remembers=True))
    if any(one.falls(SIGNIFICANT) and one.relative < -limit for one in lines):
        return None
    if is_open:
        return line
    if line.falls(SIGNIFICANT) or line.rises(SIGNIFICANT) or line.relative_error > VAGUE * limit:
        return None
    change, error = joint(lines)
    return line if change > -limit and error < ERROR * limit else None


def joint(lines: Sequence[Trend]) -> tuple[float, float]:
    """The relative change of several lines together, and its standard error: each counts by its precision."""
    weights = [1.0 / max(line.relative_error, 1e-9) ** 2 for line in lines]
    change = sum(w * line.relative for w, line in zip(weights, lines, strict=True)) / sum(weights)
    return change, 1.0 / math.sqrt(sum(weights))
