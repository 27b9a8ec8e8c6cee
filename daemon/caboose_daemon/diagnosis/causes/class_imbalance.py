"""Nearly all targets are of one class: the model answers with it and need not look at its inputs."""

from collections.abc import Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import DECISIVE, FAIR, STRONG, Cause, Evidence, opposes, supports
from caboose_daemon.incidents.diagnosis_record import Advice
from caboose_daemon.rules.parts.risky_model import DOMINANT

MANY = 0.75
"""Share of the commonest class that an answer may lean on."""
WELL = 0.5
"""Share of chance below which a training loss is low."""
ALIKE = 0.03
"""Distance of an accuracy from that of one answer to all."""
FEW_CLASSES = 1.5
"""Share of a class, times their number, below which classes are even."""


class ClassImbalance(Cause):
    """One class that outweighs the others."""

    id = "class_imbalance"
    title = "one class in nearly all targets"
    is_plain = True
    explains = frozenset(
        {"config_advice", "metric_divergence", "overfitting", "plateau", "not_learning", "underfitting"}
    )

    def weigh(self, case: Case) -> Iterator[Evidence]:
        share, classes = case.commonest_share, case.setting("num_classes")
        if share is None:
            yield from self._answers(case)
            return
        text = f"{100 * share:.0f} % of the targets are of one class"
        if share >= DOMINANT:
            yield supports(DECISIVE, text)
        elif share >= MANY:
            yield supports(FAIR, text)
        else:
            yield opposes(STRONG, f"the commonest class has only {100 * share:.0f} % of the targets")
        scores = case.accuracies()
        if share >= MANY and classes and scores and scores[-1] < FEW_CLASSES / classes:
            yield supports(FAIR, f"validation accuracy {scores[-1]:.2g} is that of one answer to {classes:.0f} classes")

    def _answers(self, case: Case) -> Iterator[Evidence]:
        """Where targets were not seen: at the first evaluation all answers are alike, and yet they train well."""
        classes, chance, first = case.setting("num_classes"), case.chance, next(iter(case.validations), None)
        if classes is None or chance is None or first is None or first[1].accuracy is None:
            return
        step, train = first[0], case.train_at(first[0])
        if train is not None and train < WELL * chance and abs(first[1].accuracy - 1.0 / classes) < ALIKE:
            text = f"all validation answers are alike (accuracy {first[1].accuracy:.2g} at step {step:,})"
            yield supports(STRONG, f"{text}, and {train:.2g} is a low training loss")

    def advise(self, case: Case) -> Advice:
        return Advice(
            first_fix="draw the rare classes more often, or weigh them more in the loss",
            code="sampler = WeightedRandomSampler(1.0 / counts[labels], len(labels))  # or weights in the loss",
            avoid="do not judge by accuracy: the answer that is always the same has a high one",
            verify="recall of each class on validation data, not only of the commonest",
        )
