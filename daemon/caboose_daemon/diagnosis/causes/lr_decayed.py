"""The schedule lowered the learning rate to almost zero before the model was trained."""

from collections.abc import Iterator

import numpy as np

from caboose_daemon.diagnosis.case import Case, Floats
from caboose_daemon.diagnosis.cause import DECISIVE, FAIR, SLIGHT, STRONG, Cause, Evidence, opposes, supports
from caboose_daemon.incidents.causal_links import STANDS_STILL
from caboose_daemon.incidents.diagnosis_record import Advice

GONE, HEALTHY = 0.02, 0.3
"""Shares of its peak below which a rate has decayed, and above which it does not explain a flat loss."""

MANY, STOOD = 40, 0.97
"""Losses before the decay, and the share of the first ones above which the last ones have not fallen."""


class LrDecayed(Cause):
    """A learning rate of almost zero while the run continues."""

    id = "lr_decayed"
    title = "learning rate decayed too early"
    explains = STANDS_STILL | {"lr_schedule", "lr_too_low", "metric_divergence", "frozen_parameters"}

    def weigh(self, case: Case) -> Iterator[Evidence]:
        lr, peak = case.lr_now, case.lr_peak
        if case.value("lr_schedule", "jump") or case.value("lr_schedule", "reset"):
            yield opposes(STRONG, "the learning rate went up, not down")
        if case.value("lr_schedule", "unmoved"):
            yield opposes(DECISIVE, "the learning rate has never been higher: its scheduler does not move it")
            return
        if lr is None or not peak:
            return
        share = lr / peak
        if share > HEALTHY:
            yield opposes(STRONG, f"learning rate is at {100 * share:.2g} % of its peak {peak:.2g}")
            return
        if share > GONE:
            return
        rates = case.curve("lr")
        if not np.isfinite(rates).any():  # known from settings alone
            yield supports(STRONG, f"learning rate is at {100 * share:.2g} % of its peak {peak:.2g}")
            return
        gone = np.flatnonzero(rates > GONE * peak)
        since = int(case.steps[min(gone[-1] + 1, len(rates) - 1)]) if len(gone) else int(case.steps[0])
        yield supports(STRONG, f"learning rate below {100 * GONE:.0f} % of its peak {peak:.2g} since step {since:,}")
        lasted = (case.step - since) / max(1, case.step)
        if lasted > 0.25:
            yield supports(FAIR, f"for {100 * lasted:.0f} % of all steps so far, and the run continues")
        yield from self._is_loss_flat_since(case, since)
        early = losses_before(case, since)
        if len(early) >= MANY and np.mean(early[-len(early) // 4 :]) > STOOD * np.mean(early[: len(early) // 4]) > 0:
            yield opposes(FAIR, f"the loss had not fallen by step {since:,} either, at {peak:.2g}")

    def _is_loss_flat_since(self, case: Case, since: int) -> Iterator[Evidence]:
        losses, steps = case.curve("loss"), case.steps
        early, late = losses_before(case, since), losses[(steps >= since) & np.isfinite(losses)]
        if len(early) < 20 or len(late) < 40:
            return
        half = len(late) // 2
        fell = float(np.mean(early[: len(early) // 4]) - np.mean(late[:half]))
        fell_since = float(np.mean(late[:half]) - np.mean(late[half:]))
        if fell > 0 and fell_since < 0.1 * fell:
            yield supports(SLIGHT, f"loss fell by {fell:.2g} before, and by {max(0.0, fell_since):.1g} since")

    def advise(self, case: Case) -> Advice:
        name, peak = case.fact("scheduler") or "the scheduler", case.lr_peak
        total = case.setting("total_steps") or case.setting("num_training_steps")
        steps = f"{total:.0f}" if total else "total_steps"
        back = f" at {peak / 3:.2g}" if peak else ""
        return Advice(
            first_fix=f"stretch {name} over the whole run (is it stepped per batch or per epoch?) and restart"
            f" the learning rate{back}",
            code=f"scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max={steps})  # per batch",
            avoid="do not change optimizer or model: none learns at this learning rate",
            verify="training and validation loss fall again within a few hundred steps at the higher rate",
        )


def losses_before(case: Case, step: int) -> Floats:
    """The finite losses before a step, of those that are kept."""
    losses = case.curve("loss")[case.steps < step]
    return losses[np.isfinite(losses)]
