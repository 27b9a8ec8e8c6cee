"""Healthy ranges, shown beside measured numbers as orientation, and what is unhealthy in all layers at once.

Design
------
Gradients scale with the loss, so a number outside of its range is no alarm. It is where something is uniform: a
comparison between layers cannot see that all of them explode, or that the gradient shrinks by the same factor in each.
So three things of the model as a whole are found: a total norm far above or far below what an optimizer without its own
scale can use, and a gradient that grows or shrinks steadily over the depth.
"""

import math
import statistics
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from caboose.trials.layer_statistics import GradientStatistics

GRADIENT_NORM = (0.1, 10.0)
SPREAD = 100.0
UPDATE_RATIO = 1e-3
EXPLODED_ALL, VANISHED_ALL = 100.0, 1e-5
"""Total norms that are reported."""
SPREAD_LIMIT = 1e3
"""Largest over smallest root mean square, from which a trend over the depth is reported."""
TREND = 0.7
"""Rank correlation with the depth, from which it is a trend."""
MIN_LAYERS = 3

_HEALTHY = (
    f"healthy, as orientation: a total gradient norm of {GRADIENT_NORM[0]:g} to {GRADIENT_NORM[1]:g}; layers within a "
    f"factor of {SPREAD:g}; an update of about {UPDATE_RATIO:g} of the weight; less than half of the outputs zero"
)
TEXT = "\n".join(textwrap.wrap(_HEALTHY, 98))
"""The ranges, for people."""


@dataclass(frozen=True, slots=True)
class ModelFinding:
    """Something that is so in the whole model."""

    kind: str
    """`exploding`, `vanishing`, `fading` (toward the input), or `growing` (toward the input)."""
    text: str
    fix: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


def total_norm(looks: Sequence[GradientStatistics]) -> float:
    """Of all trained parameters together."""
    return math.sqrt(math.fsum(look.norm**2 for look in looks if look.is_trained and look.has_gradient))


def spread(looks: Sequence[GradientStatistics]) -> float | None:
    """The largest over the smallest root mean square of the weights' gradients; None for fewer than two."""
    sizes = [look.rms for look in _weights(looks)]
    return max(sizes) / min(sizes) if len(sizes) > 1 else None


def findings(looks: Sequence[GradientStatistics], loss: float) -> tuple[ModelFinding, ...]:
    """What is unhealthy in the gradients of all layers together."""
    found = [_level(looks, loss), _trend(looks)]
    return tuple(finding for finding in found if finding is not None)


def _level(looks: Sequence[GradientStatistics], loss: float) -> ModelFinding | None:
    total = total_norm(looks)
    if not math.isfinite(total):
        return None
    healthy = f"{GRADIENT_NORM[0]:g} to {GRADIENT_NORM[1]:g} is usual"
    if total > EXPLODED_ALL:
        return ModelFinding(
            "exploding",
            f"the gradient norm of the whole model is {total:.3g} at a loss of {loss:.3g}; {healthy}",
            "clip the norm (max_norm=1), use the mean of the loss and targets of about 1, and look at the size of the "
            "initial weights (He for ReLU, Xavier for tanh)",
        )
    if 0 < total < VANISHED_ALL:
        return ModelFinding(
            "vanishing",
            f"the gradient norm of the whole model is {total:.3g} at a loss of {loss:.3g}; {healthy}",
            "fine if the run has converged; else look for a loss that is scaled down, a saturated last layer, and "
            "initial weights that are too small",
        )
    return None


def _trend(looks: Sequence[GradientStatistics]) -> ModelFinding | None:
    weights = _weights(looks)
    if len(weights) < MIN_LAYERS:
        return None
    sizes = [math.log10(look.rms) for look in weights]
    ratio = 10 ** (max(sizes) - min(sizes))
    trend = statistics.correlation(list(range(len(sizes))), _ranks(sizes)) if len(set(sizes)) > 1 else 0.0
    if ratio < SPREAD_LIMIT or abs(trend) < TREND:
        return None
    per_layer = ratio ** (1 / (len(sizes) - 1))
    way = f"{ratio:,.0f} between {weights[0].name} and {weights[-1].name}, {per_layer:.3g} per layer"
    if trend > 0:
        return ModelFinding(
            "fading",
            f"the gradient shrinks steadily from the output to the input, by a factor of {way}",
            "use ReLU or GELU with He initialisation instead of sigmoid, residual connections, or normalisation",
        )
    return ModelFinding(
        "growing",
        f"the gradient grows steadily from the output to the input, by a factor of {way}",
        "begin with smaller weights, clip the norm, or add normalisation; in a recurrent net use LSTM or GRU",
    )


def _weights(looks: Sequence[GradientStatistics]) -> list[GradientStatistics]:
    """Of trained weights, without biases, norms, and embeddings, whose gradient depends on which rows were used."""
    return [
        look
        for look in looks
        if look.is_trained
        and look.has_gradient
        and len(look.shape) > 1
        and not look.kind.startswith("Embedding")
        and math.isfinite(look.rms)
        and look.rms > 0
    ]


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    for rank, place in enumerate(order):
        ranks[place] = float(rank)
    return ranks
