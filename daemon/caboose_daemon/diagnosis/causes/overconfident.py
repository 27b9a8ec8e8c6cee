"""The model is right as often as before, but over-confident where it is wrong."""

import math
from collections.abc import Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import FAIR, STRONG, Cause, Evidence, opposes, supports
from caboose_daemon.diagnosis.causes.memorising import FEW_EPOCHS
from caboose_daemon.incidents.diagnosis_record import Advice

AT_CHANCE = 1.3
"""Score, times the number of classes, below which no answer is better than a guess."""


class Overconfident(Cause):
    """Probabilities that are no longer calibrated."""

    id = "overconfident"
    title = "over-confident predictions"
    explains = frozenset({"metric_divergence", "overfitting", "generalisation_gap"})

    def weigh(self, case: Case) -> Iterator[Evidence]:
        score, best = case.value("metric_divergence", "score"), case.value("metric_divergence", "best_score")
        loss = case.value("metric_divergence", "loss")
        if not case.value("metric_divergence", "calibration"):
            scores = [found.score[1] for _, found in case.validations if found.score is not None]
            if scores and scores[-1] < 0.97 * max(scores):
                yield opposes(FAIR, f"score fell too, from {max(scores):.3g} to {scores[-1]:.3g}")
            return
        if (chance := case.setting("num_classes")) and score is not None and score < AT_CHANCE / chance:
            yield opposes(STRONG, f"a score of {score:.3g} is that of a guess among {chance:.0f} classes")
            return
        yield supports(STRONG, f"score stays at {score:.3g} (best {best:.3g}) while the loss rises")
        classes = case.setting("num_classes")
        if classes and classes >= 2 and score is not None and loss is not None and 0 < score < 1:
            honest = _calibrated(score, classes)
            if loss > honest:
                text = (
                    f"loss {loss:.3g}, but a calibrated model with {100 * score:.0f} % right has at most {honest:.3g}"
                )
                yield supports(FAIR, text)
            elif loss < 0.6 * honest:
                yield opposes(FAIR, f"loss {loss:.3g} is low for a score of {score:.3g}")
        epochs = case.epochs_seen
        if epochs is not None and epochs < FEW_EPOCHS:
            text = f"{epochs:.2g} epochs so far: training samples are as new to the model as validation ones"
            yield opposes(STRONG, text)

    def advise(self, case: Case) -> Advice:
        return Advice(
            first_fix="stop where the validation loss was best, or smooth the labels if only the score counts",
            code="loss = F.cross_entropy(logits, targets, label_smoothing=0.1)",
            avoid="do not discard the run: its predicted classes are as good as before",
            verify="validation loss stays near its best while the score stays or rises",
        )


def _calibrated(score: float, classes: float) -> float:
    """Cross entropy of a model with probability `score` on its answer and the rest spread evenly."""
    return -score * math.log(score) - (1 - score) * math.log((1 - score) / (classes - 1))
