"""The evaluation is wrong, not the model: a metric on the wrong labels, or an evaluation of another model."""

from collections.abc import Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import FAIR, STRONG, Cause, Evidence, opposes, supports
from caboose_daemon.incidents.diagnosis_record import Advice


class MetricBug(Cause):
    """An evaluation whose numbers contradict each other."""

    id = "metric_bug"
    title = "bug in the evaluation"
    explains = frozenset({"metric_divergence"})

    def weigh(self, case: Case) -> Iterator[Evidence]:
        finding = case.finding("metric_divergence")
        if finding is None:
            return
        if case.value("metric_divergence", "equal"):
            yield supports(STRONG, finding.summary)
            trend = case.recent_trend
            if trend is not None and trend[0] < -2 * trend[1]:
                text = f"training loss changed by {100 * trend[0]:.2g} % over the last half: the weights did change"
                yield supports(FAIR, text)
        elif case.value("metric_divergence", "chance"):
            yield supports(STRONG, finding.summary)
            yield supports(FAIR, "a model with that loss is far better than chance")
        elif case.value("metric_divergence", "train_chance"):
            yield supports(STRONG, finding.summary)
        elif case.value("metric_divergence", "stalled") or case.value("metric_divergence", "train_stalled"):
            yield supports(FAIR, finding.summary)
        elif case.value("metric_divergence", "calibration"):
            yield opposes(FAIR, "loss and score are both plausible: only the confidence rose")

    def advise(self, case: Case) -> Advice:
        if case.value("metric_divergence", "equal"):
            return Advice(
                first_fix="evaluate the trained model itself, not a copy, a cached result or an old checkpoint",
                code="validate(model)  # the object given to the optimizer; an EMA copy needs its update every step",
                avoid="do not tune anything by this number: it does not depend on the run",
                verify="two evaluations some steps apart give different losses",
            )
        return Advice(
            first_fix="compute the metric manually on one batch, with the same logits and targets as the loss",
            code="accuracy = (logits.argmax(dim=-1) == targets).float().mean()  # same order, same axis as the loss",
            avoid="do not change model or learning rate: the loss shows that the model learns",
            verify="the metric is near 1 on a batch that the model has memorised",
        )
