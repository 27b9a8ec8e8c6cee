"""The evaluation is wrong, not the model: a metric on the wrong labels, or a model that is not the one trained."""

from collections.abc import Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import Cause
from caboose_daemon.diagnosis.evidence import FAIR, STRONG, Evidence, opposes, supports
from caboose_daemon.incidents.diagnosis_record import Advice


class MetricBug(Cause):
    """Numbers that cannot both be true."""

    id = "metric_bug"
    title = "the evaluation is wrong, not the model"
    explains = frozenset({"metric_divergence"})

    def weigh(self, case: Case) -> Iterator[Evidence]:
        """Which of the numbers cannot be, given the others."""
        finding = case.finding("metric_divergence")
        if finding is None:
            return
        if case.value("metric_divergence", "equal"):
            yield supports(STRONG, finding.summary)
            trend = case.recent_trend
            if trend is not None and trend[0] < -2 * trend[1]:
                text = f"the training loss moved by {100 * trend[0]:.2g} % over the last half: the weights did change"
                yield supports(FAIR, text)
        elif case.value("metric_divergence", "chance"):
            yield supports(STRONG, finding.summary)
            yield supports(FAIR, "a model with that loss answers far better than chance")
        elif case.value("metric_divergence", "stalled"):
            yield supports(FAIR, finding.summary)
        elif case.value("metric_divergence", "calibration"):
            yield opposes(FAIR, "loss and score are both plausible: only the confidence grew")

    def advise(self, case: Case) -> Advice:
        """Evaluate something whose answer is known."""
        if case.value("metric_divergence", "equal"):
            return Advice(
                first_fix="evaluate the model that is trained: not a copy, a cached result or a closed-over checkpoint",
                code="validate(model)  # the object given to the optimizer; an EMA copy needs its update every step",
                avoid="do not tune anything by this number: it says nothing about the run",
                verify="two evaluations some steps apart give different losses",
            )
        return Advice(
            first_fix="compute the metric by hand on one batch, with the same logits and targets as the loss",
            code="accuracy = (logits.argmax(dim=-1) == targets).float().mean()  # same order, same axis as the loss",
            avoid="do not change model or learning rate: the loss says that the model learns",
            verify="on a batch that the model has learned the metric is near 1",
        )
