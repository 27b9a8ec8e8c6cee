"""The model's answers are right as often as before, but it is too sure of the wrong ones."""

import math
from collections.abc import Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import Cause
from caboose_daemon.diagnosis.causes.memorising import FEW_EPOCHS
from caboose_daemon.diagnosis.evidence import FAIR, STRONG, Evidence, opposes, supports
from caboose_daemon.incidents.diagnosis_record import Advice


class Overconfident(Cause):
    """Probabilities that are no longer calibrated."""

    id = "overconfident"
    title = "too sure of its answers (calibration)"
    explains = frozenset({"metric_divergence", "overfitting"})

    def weigh(self, case: Case) -> Iterator[Evidence]:
        """Whether the score holds, and what loss a calibrated model of that score would have."""
        score, best = case.value("metric_divergence", "score"), case.value("metric_divergence", "best_score")
        loss = case.value("metric_divergence", "loss")
        if not case.value("metric_divergence", "calibration"):
            scores = [found.score[1] for _, found in case.validations if found.score is not None]
            if scores and scores[-1] < 0.97 * max(scores):
                yield opposes(FAIR, f"the score fell too, from {max(scores):.3g} to {scores[-1]:.3g}")
            return
        yield supports(STRONG, f"the score holds at {score:.3g} (best {best:.3g}) while the loss rises")
        classes = case.setting("num_classes")
        if classes and classes >= 2 and score is not None and loss is not None and 0 < score < 1:
            honest = _calibrated(score, classes)
            if loss > honest:
                text = f"a calibrated model that is right {score:.0%} of the time has a loss below {honest:.3g}, not"
                yield supports(FAIR, f"{text} {loss:.3g}")
            elif loss < 0.6 * honest:
                yield opposes(FAIR, f"a loss of {loss:.3g} is little for a score of {score:.3g}")
        epochs = case.epochs_seen
        if epochs is not None and epochs < FEW_EPOCHS:
            text = f"the data has been seen {epochs:.2g} times: training samples were as new to it as held-out ones"
            yield opposes(STRONG, text)

    def advise(self, case: Case) -> Advice:
        """Smooth the labels, or stop by the score that matters."""
        return Advice(
            first_fix="stop where the loss was best; or, if the score is what counts, smooth the labels and go on",
            code="loss = F.cross_entropy(logits, targets, label_smoothing=0.1)",
            avoid="do not call the run broken: as a ranking its answers are as good as they were",
            verify="validation loss stays near its best while the score holds or rises",
        )


def _calibrated(score: float, classes: float) -> float:
    """The cross entropy of a model that gives its answer the probability `score` and shares the rest evenly."""
    return -score * math.log(score) - (1 - score) * math.log((1 - score) / (classes - 1))
