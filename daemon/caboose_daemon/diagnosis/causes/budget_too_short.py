"""The run is stopped, or its learning rate ends, while the loss still falls: more steps are called for."""

from collections.abc import Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import Cause
from caboose_daemon.diagnosis.evidence import FAIR, STRONG, Evidence, opposes, supports
from caboose_daemon.incidents.diagnosis_record import Advice

MIN_FALL = 0.01
SIGMAS = 3.0


class BudgetTooShort(Cause):
    """It would go on learning."""

    id = "budget_too_short"
    title = "the run is too short: the loss still falls"
    explains = frozenset({"lr_schedule", "lr_too_low", "plateau", "underfitting"})
    rarity = 1.0

    def weigh(self, case: Case) -> Iterator[Evidence]:
        """Nothing but a loss that surely falls speaks for it."""
        slope = case.recent_trend
        if slope is None:
            yield opposes(FAIR, "there are too few steps to see a trend")
            return
        change, error = slope
        said = f"the loss changed by {100 * change:+.2g} % (+- {100 * error:.1g} %) over the last half of what is seen"
        if change < -MIN_FALL and change < -SIGMAS * error:
            yield supports(STRONG, said)
        else:
            yield opposes(STRONG, said)
        if case.found("plateau", "underfitting"):
            yield opposes(FAIR, "the curve was found to be flat")
        peak, now = case.lr_peak, case.lr_now
        if case.found("lr_schedule") and peak and now is not None and now < 0.05 * peak:
            yield supports(FAIR, f"the schedule brought the rate from {peak:.2g} down to {now:.2g} before that")

    def advise(self, case: Case) -> Advice:
        """A longer schedule, not only more steps."""
        return Advice(
            first_fix="stretch the schedule to twice as many steps, and train as long",
            code=f"scheduler = CosineAnnealingLR(optimizer, T_max={2 * max(1, case.step)})  # ended at {case.step}",
            avoid="do not append steps at the schedule's last rate: they are too small to count",
            verify="the loss at the old end is about the same, and goes on falling after it",
        )
