"""The model has learned what it can from this data: the standstill is the end."""

from collections.abc import Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import Cause
from caboose_daemon.diagnosis.evidence import FAIR, SLIGHT, STRONG, Evidence, opposes, supports
from caboose_daemon.incidents.diagnosis_record import Advice

LOW, HIGH = 0.3, 0.8
"""Shares of where it began at which a loss has surely been learned, and at which it has hardly."""


class Converged(Cause):
    """Nothing is wrong."""

    id = "converged"
    title = "the model has converged"
    explains = frozenset({"plateau", "underfitting", "metric_divergence"})

    def weigh(self, case: Case) -> Iterator[Evidence]:
        """How far the loss has come, and whether validation came with it."""
        start, level = case.value("plateau", "start"), case.level
        start = max(start or 0.0, case.chance or 0.0)
        if level is not None and start > 0:
            share = level / start
            if share < LOW:
                yield supports(FAIR, f"the loss has come down to {100 * share:.2g} % of where it began")
            elif share > HIGH:
                yield opposes(STRONG, f"the loss still stands at {100 * share:.2g} % of where it began")
        validations = [found.loss for _, found in case.validations]
        if len(validations) >= 4 and level is not None and level > 0:
            last, best = validations[-1], min(validations)
            if last <= 1.02 * best and last < 1.5 * level:
                yield supports(SLIGHT, f"validation stands at its best too ({last:.4g})")
        lr, peak = case.lr_now, case.lr_peak
        total = case.setting("total_steps")
        if lr is not None and peak and lr < 0.02 * peak and not (total and case.step > 0.9 * total):
            yield opposes(FAIR, f"the rate was taken away ({lr / peak:.1g} of its peak) before that could be seen")

    def advise(self, case: Case) -> Advice:
        """Stop, and judge by validation."""
        return Advice(
            first_fix="stop here if validation is good enough; if not, get more or cleaner data of what it gets wrong",
            code="",
            avoid="do not train on at this rate, and do not change the optimizer to squeeze out more",
            verify="a run at three times the rate comes to the same loss",
        )
