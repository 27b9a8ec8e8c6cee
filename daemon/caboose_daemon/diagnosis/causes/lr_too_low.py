"""The learning rate is so low that the weights hardly move."""

import math
from collections.abc import Iterator

from caboose_daemon.diagnosis import beginnings, lines
from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import Cause
from caboose_daemon.diagnosis.evidence import FAIR, STRONG, Evidence, opposes, supports
from caboose_daemon.incidents.causal_links import STANDS_STILL
from caboose_daemon.incidents.diagnosis_record import Advice

SMALL_UPDATE, USUAL_UPDATE = 1e-5, 3e-4
"""Shares of itself that a weight matrix moves by in a step: too little to learn from within a run, and usual."""
ADAM_USUAL, SGD_USUAL = 1e-6, 1e-5
"""Below these a rate is unusual for anything but the end of a schedule."""
ADAM_AMPLE, SGD_AMPLE = 1e-3, 1e-2
"""Above these a rate is not low for anything."""


class LrTooLow(Cause):
    """Steps too small to get anywhere."""

    id = "lr_too_low"
    title = "the learning rate is too low"
    explains = STANDS_STILL | {"lr_too_low", "config_advice", "metric_divergence"}

    def weigh(self, case: Case) -> Iterator[Evidence]:
        """How far the weights really move, and the rate against its own peak and against what is usual."""
        told = case.value("lr_too_low", "update_ratio")
        update = told if told is not None else case.update_ratio
        has_moved = list(self._has_moved(case))
        if told is not None and told > 0:
            yield supports(STRONG, f"the typical weight matrix moves by {told:.1g} of itself in a step")
            yield supports(FAIR, f"at that pace it takes {0.01 / told:.1g} steps to change it by 1 %")
        elif update is not None and 0 < update < SMALL_UPDATE and not has_moved:
            yield supports(FAIR, f"the typical weight matrix moves by {update:.1g} of itself in a step")
        elif update is not None and update > USUAL_UPDATE:
            yield opposes(STRONG, f"weight matrices do move: by {100 * update:.2g} % of themselves in a step")
        yield from has_moved
        lr, peak = case.lr_now, case.lr_peak
        usual, ample = (ADAM_USUAL, ADAM_AMPLE) if "Adam" in case.optimizer else (SGD_USUAL, SGD_AMPLE)
        if lr is not None and case.optimizer and 0 < lr < usual:
            yield supports(FAIR, f"a rate of {lr:.2g} is unusually low for {case.optimizer}")
        elif lr is not None and case.optimizer and lr >= ample and told is None:
            yield opposes(FAIR, f"a rate of {lr:.2g} is not low for {case.optimizer}")
        if lr is not None and peak and lr < 0.1 * peak:
            yield opposes(STRONG, f"the rate was higher before: {peak:.2g}, now {lr:.2g}")
        if case.found("frozen_parameters"):
            yield opposes(FAIR, "some layers do not learn at any rate")

    def _has_moved(self, case: Case) -> Iterator[Evidence]:
        """What only a run shows whose steps were long enough to move it: too low a rate never does."""
        if case.found("lr_too_high"):
            yield opposes(STRONG, "steps were too large at first")
        jump, fading = beginnings.jump(case), beginnings.fading(case)
        if jump is not None:
            yield opposes(STRONG, f"the loss has moved: from {jump.first:.4g} to {jump.peak:.4g} soon after the start")
        elif fading is not None:
            text = f"the gradient norm was {fading.then:.2g} at first and is {fading.now:.2g}"
            yield opposes(STRONG, f"{text}: gradients are gone, whatever the rate")

    def advise(self, case: Case) -> Advice:
        """More, by as much as the updates tell."""
        lr, update = case.lr_now, case.value("lr_too_low", "update_ratio") or case.update_ratio
        factor = 10.0 if not update else min(1e6, max(10.0, 10.0 ** round(math.log10(1e-3 / update))))
        return Advice(
            first_fix=f"multiply the learning rate by {factor:.0f}, then by 3 at a time until one batch is learned",
            code=lines.rate(case, lr, factor),
            avoid="do not train for more epochs at this rate, and do not change the optimizer first",
            verify="weight matrices move by about 0.1 % in a step, and one batch can be learned by heart in 100 steps",
        )
