"""Chance level: the loss of a guess among all classes, told by the user or read off an untrained model.

Design
------
Few people tell how many classes there are. But an untrained classifier gives it away: its first loss is ln(n), where n
is the number of its outputs, and hardly any other loss begins just there. A fine-tuned one does not begin at chance,
and of a regression nothing is concluded unless its first loss happens to lie there.
"""

import math
from collections.abc import Sequence

from caboose_daemon.steps.view import JobView
from caboose_wire import Module

AT_CHANCE = 0.1
"""Share by which the first loss of an untrained model may lie off chance."""
HEADS = ("linear", "conv1d", "conv2d")
"""Kinds of modules that make outputs."""


def known(view: JobView) -> float | None:
    """ln(num_classes), where the user told it and it makes sense."""
    classes = view.setting("num_classes")
    return math.log(classes) if classes is not None and classes >= 2 else None


def likely(view: JobView, first: float) -> float | None:
    """The same, or that of as many classes as the model has outputs, if its first loss lies there."""
    told = known(view)
    if told is not None or view.setting("num_classes") is not None:
        return told
    outputs = _outputs(view.modules)
    chance = math.log(outputs) if outputs >= 2 else math.nan
    return chance if abs(first / chance - 1.0) < AT_CHANCE else None


def _outputs(modules: Sequence[Module]) -> int:
    """How many numbers the last module that makes any gives out for each sample; 0 where that is not known."""
    return next((module.num_units for module in reversed(modules) if module.kind.lower() in HEADS), 0)
