"""The loss stands near the floor that label smoothing leaves: it can fall no further, though answers may get better."""

import math
from collections.abc import Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import DECISIVE, FAIR, Cause, Evidence, opposes, supports
from caboose_daemon.incidents.diagnosis_record import Advice

NAMES = ("label_smoothing", "label_smoothing_factor")
NEAR = 1.25
"""Loss over the floor up to which nothing much is left to learn."""
FAR = 2.0
HIGH = 0.25
"""Smoothing above which targets are nearly even."""


class LabelSmoothing(Cause):
    """Targets that are not sure, by choice."""

    id = "label_smoothing"
    title = "floor of label smoothing"
    explains = frozenset({"plateau", "underfitting", "metric_divergence", "not_learning"})
    rarity = 1.0

    def weigh(self, case: Case) -> Iterator[Evidence]:
        amount, floor, level = smoothing(case), loss_floor(case), case.level
        if amount is None:
            return
        if amount > HIGH:
            yield supports(FAIR, f"label smoothing of {amount:g} leaves little of the labels")
        if floor is None or level is None:
            return
        text = f"loss {level:.3g}; label smoothing of {amount:g} leaves at least {floor:.3g}"
        if level < NEAR * floor:
            yield supports(DECISIVE, text)
            accuracies = case.accuracies()
            if len(accuracies) >= 2 and accuracies[-1] > accuracies[0]:
                yield supports(FAIR, f"accuracy rose meanwhile, from {accuracies[0]:.3g} to {accuracies[-1]:.3g}")
        elif level > FAR * floor:
            yield opposes(FAIR, text)

    def advise(self, case: Case) -> Advice:
        floor = loss_floor(case)
        least = "" if floor is None else f" (at least {floor:.3g} with label smoothing)"
        return Advice(
            first_fix=f"judge by accuracy or by the loss without smoothing, not by this loss{least}",
            code="val_loss = F.cross_entropy(logits, targets)  # without label_smoothing, in the evaluation",
            avoid="do not change the learning rate for a loss that is near its floor",
            verify="the loss without smoothing, on validation data, still falls",
        )


def smoothing(case: Case) -> float | None:
    """The share of each target that is spread over all classes; None where it is not known, or none."""
    given = next((value for name in NAMES if (value := case.setting(name)) is not None), None)
    return given if given is not None and 0.0 < given <= 1.0 else None


def loss_floor(case: Case) -> float | None:
    """The cross entropy of the best answer to smoothed targets: their own entropy."""
    amount, classes = smoothing(case), case.setting("num_classes")
    if amount is None or classes is None:
        return None
    others = amount / classes
    right = 1.0 - amount + others
    return -right * math.log(right) - (classes - 1.0) * others * math.log(others)
