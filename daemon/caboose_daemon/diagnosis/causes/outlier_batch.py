"""One batch differs from the others: mislabelled, corrupt, or rare."""

from collections.abc import Iterator

import numpy as np

from caboose_daemon.diagnosis import curves, model_facts
from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import FAIR, SLIGHT, STRONG, Cause, Evidence, opposes, supports
from caboose_daemon.incidents.diagnosis_record import Advice

SHORT = 30
"""Reported points within which the effect of one batch is over."""
MANY = 3
LARGE_UPDATE = 1e-2
"""Update-to-weight ratio above which any batch may break the run."""
KEPT = 0.5
"""Share of a jump that is left a few steps later where every batch raises the loss."""
SUDDEN = 0.5
"""Share of a rise in a single step, above which that step made it: what it did to the weights may last for long."""
RECOVERS = 0.3
"""Share of the rise that is gone in a recovering run."""


class OutlierBatch(Cause):
    """Odd data in one or a few steps."""

    id = "outlier_batch"
    title = "outlier batch"
    explains = frozenset({"loss_spike", "gradient_explosion", "bad_batch", "rank_outlier", "divergence"})

    def weigh(self, case: Case) -> Iterator[Evidence]:
        spike = next((m for m in case.incident.reportable if m.rule in ("loss_spike", "gradient_explosion")), None)
        away = case.episode("divergence")
        heals = (
            case.regained is not None and case.regained > RECOVERS and case.jump is not None and case.jump[2] > SUDDEN
        )
        if (kept := case.sustained) is not None and kept > KEPT:
            yield opposes(FAIR, f"{100 * kept:.0f} % of the rise was left a few steps later: not one batch alone")
            heals = False
        if heals and not model_facts.kinds(case) & set(model_facts.RECURRENT):  # it may blow up in one step
            yield supports(FAIR, f"the loss rose in one step and recovers: {100 * (case.regained or 0):.0f} % is gone")
        elif away is not None and (num := (away.last.step - away.first.onset_step) // case.gap) > 2 * SHORT:
            yield opposes(STRONG, f"loss stayed high for {num:,} points: longer than one batch explains")
        odd = case.episode("rank_outlier")
        if odd is not None and (length := odd.last.step - odd.first.onset_step) > 2 * SHORT * case.gap:
            yield opposes(STRONG, f"a rank stays apart for {length:,} steps: all of its batches are odd")
        parted = curves.ranks_parted(case)
        if parted is not None:
            yield opposes(STRONG, f"a rank's loss stayed near {parted.low:.3g} for several steps: not one batch")
        if (left := curves.validation_left(case)) is not None:
            yield opposes(STRONG, f"validation stays at {left[1]:.3g} since, from {left[0]:.3g}: not one batch")
        if case.found("non_finite") and case.most("bad_batch", "bad_elements"):
            yield opposes(STRONG, "its elements are not finite, and the loss was not either")
        elif case.found("bad_batch"):
            yield supports(STRONG, "the batch itself is bad: see bad_batch")
        if spike is not None:
            points = (spike.last.step - spike.first.onset_step) // case.gap + 1
            if not spike.is_open and points <= SHORT:
                yield supports(FAIR, f"over after {points} points")
            elif points > 2 * SHORT and not heals:
                yield opposes(FAIR, f"lasts for {points:,} points: longer than one batch explains")
            num = sum(member.rule == spike.rule for member in case.incident.reportable)
            if num >= MANY:
                yield opposes(FAIR, f"{num} times within this incident")
        if not heals and case.regained is not None and case.regained > RECOVERS and not case.found("divergence"):
            yield supports(FAIR, f"loss recovers: {100 * case.regained:.0f} % of its rise is gone")
        norms = case.before("grad_norm")
        if len(norms) >= 20:
            grown = float(np.median(norms[-5:]) / max(np.median(norms), 1e-30))
            if grown < 1.5:
                yield supports(SLIGHT, "gradient norm was usual until the step before")
        gradient = curves.gradient_out_of_calm(case)
        if gradient is not None:
            yield supports(FAIR, f"one gradient of {gradient:,.3g}x the usual norm did it, out of calm")
        if case.found("lr_schedule", "oscillation") or (gradient is None and case.found("lr_too_high")):
            yield opposes(FAIR, "the learning rate alone would explain it")
        before = case.update_before
        if case.began_early and before is not None and before.value > LARGE_UPDATE:
            yield opposes(
                FAIR, f"weights changed by {100 * before.value:.2g} % at step {before.step:,}, before any level"
            )
        if case.began_early and case.onset <= 20:
            yield opposes(SLIGHT, f"step {case.onset:,} is too early to know the usual batch")

    def advise(self, case: Case) -> Advice:
        return Advice(
            first_fix=f"inspect the batch of step {case.onset:,} and the one before; let a recovering run continue",
            code="torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # before optimizer.step()",
            avoid="do not roll back at once: most such spikes recover within some tens of steps",
            verify="the loss is back at its earlier level, and the batch does not occur again in the next epoch",
        )
