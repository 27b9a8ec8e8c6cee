"""The model has learned what it can from this data: the flat loss is its final value."""

from collections.abc import Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import FAIR, SLIGHT, STRONG, Cause, Evidence, opposes, supports
from caboose_daemon.incidents.diagnosis_record import Advice

LOW, HIGH = 0.3, 0.8
"""Shares of its start below which a loss has converged, and above which it has not."""


class Converged(Cause):
    """A flat loss without a fault."""

    id = "converged"
    title = "converged model"
    explains = frozenset({"plateau", "underfitting", "metric_divergence"})

    def weigh(self, case: Case) -> Iterator[Evidence]:
        start, level = case.value("plateau", "start"), case.level
        start = max(start or 0.0, case.chance or 0.0)
        if level is not None and start > 0:
            share = level / start
            if share < LOW:
                yield supports(FAIR, f"loss is down to {100 * share:.2g} % of its start")
            elif share > HIGH:
                yield opposes(STRONG, f"loss is still {100 * share:.2g} % of its start")
        if case.value("metric_divergence", "stalled"):
            yield opposes(STRONG, "the validation loss still falls: nothing has converged")
        validations = [found.loss for _, found in case.validations]
        if len(validations) >= 4 and level is not None and level > 0:
            last, best = validations[-1], min(validations)
            if last <= 1.02 * best and last < 1.5 * level:
                yield supports(SLIGHT, f"validation loss is at its best too ({last:.4g})")
        lr, peak = case.lr_now, case.lr_peak
        total = case.setting("total_steps")
        if lr is not None and peak and lr < 0.02 * peak and not (total and case.step > 0.9 * total):
            yield opposes(
                FAIR, f"learning rate is {100 * lr / peak:.1g} % of its peak, so the flat loss proves nothing"
            )

    def advise(self, case: Case) -> Advice:
        return Advice(
            first_fix="stop if validation is good enough; if not, add data of the cases that it gets wrong",
            code="",
            avoid="do not continue at this learning rate, and do not change the optimizer",
            verify="a run at three times the learning rate reaches the same loss",
        )
