"""The learning rate is so low that the weights hardly change."""

import math
from collections.abc import Iterator

from caboose_daemon.diagnosis import curves
from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import FAIR, STRONG, Cause, Evidence, line_to_scale_lr, opposes, supports
from caboose_daemon.diagnosis.causes.precision_lost import HALF_DIGIT
from caboose_daemon.incidents.causal_links import STANDS_STILL
from caboose_daemon.incidents.diagnosis_record import Advice

SMALL_UPDATE, USUAL_UPDATE = 1e-5, 3e-4
"""Update-to-weight ratios: too small to learn within a run, and usual."""
ADAM_USUAL, SGD_USUAL = 1e-6, 1e-5
"""Learning rates below these are unusual, except at the end of a schedule."""
SCALED = ("Adam", "Lion", "Muon", "Adafactor", "RMSprop", "Lamb", "Sophia", "Shampoo", "Signum")
"""Optimizers whose steps do not depend on the size of the gradients."""
ADAM_AMPLE, SGD_AMPLE = 1e-3, 1e-2
"""Learning rates above these are never low."""


class LrTooLow(Cause):
    """Steps that are too small to learn."""

    id = "lr_too_low"
    title = "learning rate too low"
    is_plain = True
    explains = STANDS_STILL | {"lr_too_low", "config_advice", "metric_divergence"}

    def weigh(self, case: Case) -> Iterator[Evidence]:
        found = case.value("lr_too_low", "update_ratio")
        update = found if found is not None else case.typical_update
        has_moved = list(self._has_moved(case))
        if found is not None and found > 0:
            yield supports(STRONG, f"weights change by {found:.1g} of their norm per step")
            yield supports(FAIR, f"a change of the weights by 1 % takes {0.01 / found:.1g} steps")
        elif (creeping := case.value("not_learning", "creeping_lr")) is not None:
            yield supports(STRONG, f"loss falls in a straight line, hardly at all, at learning rate {creeping:.2g}")
            yield supports(FAIR, "a loss that learns bends: it falls fast first, then slower")
        elif update is not None and 0 < update < SMALL_UPDATE and not has_moved:
            yield supports(FAIR, f"weights change by {update:.1g} of their norm per step")
        elif update is not None and update > USUAL_UPDATE:
            yield opposes(STRONG, f"weights change by {100 * update:.2g} % per step")
        yield from has_moved
        now, peak = case.lr_now, case.lr_peak
        lr = now if now is None or peak is None else max(now, peak)  # at the end of a schedule every rate is low
        is_scaled = any(name in case.optimizer for name in SCALED)
        usual, ample = (ADAM_USUAL, ADAM_AMPLE) if is_scaled else (SGD_USUAL, SGD_AMPLE)
        if lr is not None and case.optimizer and 0 < lr < usual:
            yield supports(FAIR, f"learning rate {lr:.2g} is unusually low for {case.optimizer}")
        elif lr is not None and case.optimizer and lr >= ample and found is None:
            yield opposes(FAIR, f"learning rate {lr:.2g} is not low for {case.optimizer}")
        if now is not None and peak and peak >= usual and now < 0.1 * peak:
            yield opposes(STRONG, f"learning rate was {peak:.2g} before, now {now:.2g}")
        if case.fact("precision") in HALF_DIGIT:
            text = "the weights' precision rounds small changes away: what is seen of a step is less than it asks for"
            yield opposes(FAIR, text)
        if case.found("frozen_parameters"):
            yield opposes(FAIR, "some layers are frozen and learn at no rate")

    def _has_moved(self, case: Case) -> Iterator[Evidence]:
        """Signs that steps were large enough to change the model, which a rate that is too low never shows."""
        if case.found("lr_too_high"):
            yield opposes(STRONG, "the first steps were too large")
        jump, fading = curves.early_jump(case), curves.faded_gradient(case)
        if jump is not None:
            yield opposes(STRONG, f"loss jumped from {jump.first:.4g} to {jump.peak:.4g} soon after the start")
        elif fading is not None:
            text = f"gradient norm fell from {fading.then:.2g} to {fading.now:.2g}"
            yield opposes(STRONG, f"{text}: gradients vanished, whatever the learning rate")

    def advise(self, case: Case) -> Advice:
        lr, update = case.lr_now, case.value("lr_too_low", "update_ratio") or case.typical_update
        factor = 10.0 if not update else min(1e6, max(10.0, 10.0 ** round(math.log10(1e-3 / update))))
        return Advice(
            first_fix=f"multiply the learning rate by {factor:.0f}, then by 3 at a time until it memorises one batch",
            code=line_to_scale_lr(case, lr, factor),
            avoid="do not train longer at this learning rate, and do not change the optimizer first",
            verify="weights change by about 0.1 % per step, and the model memorises one batch in 100 steps",
        )
