"""Chance level: the loss of a uniform guess among all classes, from the user's setting or inferred from the model.

Design
------
Few users set the number of classes. But the first loss of an untrained classifier is ln(n), where n is the number of
its outputs, and hardly any other loss starts at just that value. A fine-tuned classifier does not start at chance, and
nothing is inferred for a regression unless its first loss happens to equal ln(n).
"""

import math
from collections.abc import Sequence

from caboose_daemon.steps.view import JobView
from caboose_wire import Module

AT_CHANCE = 0.1
"""Relative distance from chance up to which the first loss of an untrained model is at chance."""
HEADS = ("linear", "conv1d", "conv2d")
"""Kinds of modules that can produce the model's outputs."""


def known(view: JobView) -> float | None:
    """ln(num_classes), where the user set a number of at least 2."""
    classes = view.setting("num_classes")
    return math.log(classes) if classes is not None and classes >= 2 else None


def likely(view: JobView, first: float) -> float | None:
    """`known`, or else ln(number of outputs) if the first loss is there."""
    chance = known(view)
    if chance is not None or view.setting("num_classes") is not None:
        return chance
    outputs = _outputs(view.modules)
    guessed = math.log(outputs) if outputs >= 2 else math.nan
    return guessed if abs(first / guessed - 1.0) < AT_CHANCE else None


def right_at(loss: float, classes: float) -> float:
    """Share of right answers of a model with this cross entropy that is as sure of each answer as it is right.

    It is as sure of all, and spreads the rest evenly; found by halving.
    """
    low, high = 1.0 / classes, 1.0
    for _ in range(20):
        middle = (low + high) / 2
        rest = 1.0 - middle
        of_middle = -middle * math.log(middle) - rest * math.log(max(rest, 1e-12) / max(classes - 1.0, 1.0))
        low, high = (middle, high) if of_middle > loss else (low, middle)
    return low


def _outputs(modules: Sequence[Module]) -> int:
    """Outputs per sample of the last module of such a kind; 0 where unknown."""
    return next((module.num_units for module in reversed(modules) if module.kind.lower() in HEADS), 0)
