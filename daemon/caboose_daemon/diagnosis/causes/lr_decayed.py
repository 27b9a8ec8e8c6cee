"""The schedule took the learning rate away before the model was done."""

from collections.abc import Iterator

import numpy as np

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import Cause
from caboose_daemon.diagnosis.evidence import FAIR, SLIGHT, STRONG, Evidence, opposes, supports
from caboose_daemon.incidents.causal_links import STANDS_STILL
from caboose_daemon.incidents.diagnosis_record import Advice

GONE, HEALTHY = 0.02, 0.3
"""Shares of its peak at which a rate is next to nothing, and at which a standstill is not its fault."""


class LrDecayed(Cause):
    """A rate that is next to nothing while steps are left."""

    id = "lr_decayed"
    title = "the learning rate has decayed to nothing"
    explains = STANDS_STILL | {"lr_schedule", "lr_too_low", "metric_divergence", "frozen_parameters"}

    def weigh(self, case: Case) -> Iterator[Evidence]:
        """The rate against its peak, since when, and whether the loss stood still with it."""
        lr, peak = case.lr_now, case.lr_peak
        if case.value("lr_schedule", "jump") or case.value("lr_schedule", "reset"):
            yield opposes(STRONG, "the rate went up, not down")
        if lr is None or not peak:
            return
        share = lr / peak
        if share > HEALTHY:
            yield opposes(STRONG, f"the rate stands at {share:.2g} of its peak of {peak:.2g}")
            return
        if share > GONE:
            return
        rates = case.curve("lr")
        gone = np.flatnonzero(rates > GONE * peak)
        since = int(case.steps[min(gone[-1] + 1, len(rates) - 1)]) if len(gone) else int(case.steps[0])
        yield supports(STRONG, f"the rate has been below {GONE:.0%} of its peak of {peak:.2g} since step {since}")
        lasted = (case.step - since) / max(1, case.step)
        if lasted > 0.25:
            yield supports(FAIR, f"that is {100 * lasted:.0f} % of all steps so far, and the run goes on")
        yield from self._stopped_with_it(case, since)

    def _stopped_with_it(self, case: Case, since: int) -> Iterator[Evidence]:
        losses, steps = case.curve("loss"), case.steps
        early, late = losses[(steps < since) & np.isfinite(losses)], losses[(steps >= since) & np.isfinite(losses)]
        if len(early) < 20 or len(late) < 40:
            return
        half = len(late) // 2
        fell = float(np.mean(early[: len(early) // 4]) - np.mean(late[:half]))
        fell_since = float(np.mean(late[:half]) - np.mean(late[half:]))
        if fell > 0 and fell_since < 0.1 * fell:
            yield supports(SLIGHT, f"the loss fell by {fell:.2g} until then, and by {max(0.0, fell_since):.1g} since")

    def advise(self, case: Case) -> Advice:
        """Stretch the schedule, or begin it again."""
        name, peak = case.fact("scheduler") or "the scheduler", case.lr_peak
        total = case.setting("total_steps") or case.setting("num_training_steps")
        steps = f"{total:.0f}" if total else "total_steps"
        back = f" at {peak / 3:.2g}" if peak else ""
        return Advice(
            first_fix=f"stretch {name} over the whole run (count what it is stepped by: batches or epochs), and restart"
            f" the rate{back}",
            code=f"scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max={steps})  # per batch",
            avoid="do not change the optimizer or the model: at this rate none of them can learn",
            verify="the loss falls again within some hundred steps of the higher rate, and validation with it",
        )
