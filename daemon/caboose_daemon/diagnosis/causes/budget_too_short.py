"""The run stops, or its learning rate ends, while the loss still falls: it needs more steps."""

from collections.abc import Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import FAIR, STRONG, Cause, Evidence, opposes, supports
from caboose_daemon.incidents.diagnosis_record import Advice

MIN_FALL = 0.01
SIGMAS = 3.0


class BudgetTooShort(Cause):
    """A loss that still falls at the end of the run."""

    id = "budget_too_short"
    title = "too few training steps"
    explains = frozenset({"lr_schedule", "lr_too_low", "plateau", "underfitting"})
    rarity = 1.0

    def weigh(self, case: Case) -> Iterator[Evidence]:
        slope = case.recent_trend
        if slope is None:
            yield opposes(FAIR, "too few steps for a trend")
            return
        change, error = slope
        text = f"loss changed by {100 * change:+.2g} % (+- {100 * error:.1g} %) over the last half of the curve"
        if change < -MIN_FALL and change < -SIGMAS * error:
            yield supports(STRONG, text)
        else:
            yield opposes(STRONG, text)
        if case.found("plateau", "underfitting"):
            yield opposes(FAIR, "the loss is flat")
        peak, now = case.lr_peak, case.lr_now
        if case.value("lr_schedule", "unmoved"):
            yield opposes(STRONG, "the scheduler never changed the learning rate: more steps at this rate end the same")
        elif case.found("lr_schedule") and peak and now is not None and now < 0.05 * peak:
            yield supports(FAIR, f"the schedule lowered the learning rate from {peak:.2g} to {now:.2g} before that")

    def advise(self, case: Case) -> Advice:
        return Advice(
            first_fix="stretch the schedule to twice as many steps and train for as long",
            code=f"scheduler = CosineAnnealingLR(optimizer, T_max={2 * max(1, case.step)})  # ended at {case.step}",
            avoid="do not append steps at the schedule's last learning rate: it is too low",
            verify="the loss at the old end is about the same and still falls after it",
        )
