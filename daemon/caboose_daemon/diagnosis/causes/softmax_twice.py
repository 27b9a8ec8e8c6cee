"""A softmax is applied to probabilities: the model ends in one, and the cross entropy takes another."""

import math
from collections.abc import Iterator

from caboose_daemon.diagnosis import model_facts
from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import DECISIVE, FAIR, STRONG, Cause, Evidence, opposes, supports
from caboose_daemon.incidents.causal_links import STANDS_STILL
from caboose_daemon.incidents.diagnosis_record import Advice

SLACK = 0.02
"""Share by which a loss may fall below the floor, from rounding."""
NEAR_FLOOR = 0.3
"""Share of the way from the floor to chance within which a loss is near its floor."""
SURE = 0.8
"""Accuracy above which a usual loss is far below that of a second softmax."""
ALIKE = 0.15
"""Share of the way from chance to the floor within which a loss fits what the accuracy gives."""


class SoftmaxTwice(Cause):
    """Probabilities where the loss expects logits."""

    id = "softmax_twice"
    title = "softmax applied twice"
    is_plain = True
    explains = STANDS_STILL | {"lr_too_low", "gradient_vanishing", "metric_divergence", "config_advice"}
    rarity = 0.5

    def weigh(self, case: Case) -> Iterator[Evidence]:
        classes, lowest = case.setting("num_classes"), lowest_loss(case)
        ends = model_facts.last_module(case)
        if case.fact("loss_mistake") == "softmax_twice":
            yield supports(DECISIVE, "the loss's graph has a softmax of the model's output, and another one above it")
        elif case.fact("loss_kind"):
            yield opposes(DECISIVE, "the loss's graph has one softmax")
            return
        elif ends is not None and ends.kind.lower() in ("softmax", "sigmoid", "softmax2d") and classes:
            yield supports(STRONG, f"the model ends in {ends.kind} ({ends.name}), and cross entropy expects logits")
        if not classes or lowest is None:
            return
        floor = floor_of(classes)
        if lowest < (1.0 - SLACK) * floor:
            yield opposes(DECISIVE, f"loss was down to {lowest:.3g}; of probabilities it cannot fall below {floor:.3g}")
        elif lowest - floor < NEAR_FLOOR * (math.log(classes) - floor):
            yield supports(FAIR, f"loss came down to {floor:.3g}, the least that a loss of probabilities can be")
        advice = case.finding("config_advice")
        if advice is not None and "softmax_twice" in advice.values and not (ends and "softmax" in ends.kind.lower()):
            yield supports(DECISIVE, "training and validation loss are, at this accuracy, those of probabilities")
        yield from self._fits_accuracy(case, floor, math.log(classes))

    def _fits_accuracy(self, case: Case, floor: float, chance: float) -> Iterator[Evidence]:
        """The loss of sure probabilities is the floor for a right answer, and one more for a wrong one."""
        pairs = [(found.loss, found.accuracy) for _, found in case.validations if found.accuracy is not None]
        if not pairs:
            return
        loss, accuracy = pairs[-1]
        train = case.train_at(case.validations[-1][0])
        if train is not None and train - floor > NEAR_FLOOR * (chance - floor) + 1.0 - accuracy:
            yield opposes(STRONG, f"training loss {train:.3g} is far above that of a second softmax")
            return
        expected = floor + 1.0 - accuracy
        if accuracy > SURE and abs(loss - expected) < ALIKE * (chance - floor):
            text = f"validation loss {loss:.3g} at accuracy {accuracy:.2g} is that of a second softmax ({expected:.3g})"
            yield supports(STRONG, text)

    def advise(self, case: Case) -> Advice:
        ends = model_facts.last_module(case)
        place = ends.name if ends is not None and "softmax" in ends.kind.lower() else "the last softmax"
        return Advice(
            first_fix=f"remove {place}: cross_entropy takes logits and applies log_softmax itself",
            code="loss = F.cross_entropy(logits, targets)  # not F.cross_entropy(logits.softmax(-1), targets)",
            avoid="do not raise the learning rate or train longer: the loss cannot fall below its floor",
            verify="the loss falls below the floor within a few hundred steps",
        )


def floor_of(classes: float) -> float:
    """The least cross entropy of probabilities that are taken for logits."""
    return math.log(math.e + classes - 1.0) - 1.0


def lowest_loss(case: Case) -> float | None:
    """The lowest loss of the curve's median of five, which one lucky batch does not set."""
    values = [value for value in case.curve("loss").tolist() if math.isfinite(value)]
    medians = [sorted(values[i : i + 5])[2] for i in range(len(values) - 4)]
    return min(medians, default=None)
