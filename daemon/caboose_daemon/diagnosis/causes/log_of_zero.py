"""The loss takes a logarithm of zero, divides by zero, or does something else that is undefined on some batch."""

from collections.abc import Iterator

import numpy as np

from caboose_daemon.diagnosis import anatomy, growth
from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import Cause
from caboose_daemon.diagnosis.evidence import DECISIVE, FAIR, SLIGHT, STRONG, Evidence, opposes, supports
from caboose_daemon.incidents.diagnosis_record import Advice

CALM = 2.0
"""A norm below so many times its median was as usual."""


class LogOfZero(Cause):
    """An undefined operation in the loss itself."""

    id = "log_of_zero"
    title = "log(0) or 0/0 in the loss"
    explains = frozenset({"non_finite", "loss_spike", "divergence", "gradient_explosion"})
    """Close to zero a logarithm is large, and its slope larger still, before it is infinite."""

    def weigh(self, case: Case) -> Iterator[Evidence]:
        """The loss is the first bad number, while inputs, activations and norms before it are fine."""
        finding = case.finding("non_finite")
        if finding is None:
            return
        for hunt in case.hunts[:1]:
            if hunt.is_run and hunt.is_undefined:
                yield supports(DECISIVE, f"a hunt found: {hunt.summary}")
            elif hunt.is_run:
                yield opposes(FAIR, f"a hunt found that it was {hunt.operation or 'no logarithm'}")
            else:
                yield opposes(STRONG, f"a hunt found: {hunt.summary}")
        if finding.phase == "input":
            yield opposes(STRONG, "the inputs were not finite already")
        elif finding.layers and finding.phase == "forward":
            yield opposes(FAIR, f"it began in {finding.layers[0]}, before the loss")
        elif finding.phase == "forward":
            if finding.values.get("was_looked_into"):
                yield supports(STRONG, "the loss was the first bad number: no activation before it was")
            else:
                yield supports(FAIR, "the loss was the first bad number that was seen")
        if anatomy.is_half(case):
            yield opposes(FAIR, "float16 is in use: what overflows there makes a loss infinite or NaN as well")
        elif finding.values.get("loss_is_infinite"):
            yield supports(FAIR, "the loss was infinite at first, as -log(0) is, and not NaN")
        if finding.values.get("bad_inputs") == 0:
            yield supports(SLIGHT, "every element of its batch was finite")
        largest = finding.values.get("largest_activation")
        if largest is not None and np.isfinite(largest) and largest < anatomy.HALF_MAX / 10:
            yield supports(SLIGHT, f"activations reached {largest:.3g} at the last closer look: far from any overflow")
        norms = case.before("grad_norm")
        broken = [m for rule in ("gradient_explosion", "divergence") if (m := case.episode(rule)) is not None]
        first = min(m.first.onset_step for m in case.incident.episodes if m.rule == "non_finite")
        growing = growth.before_break(case)
        if growing is not None:
            yield opposes(STRONG, growing.text)
        elif any(m.first.onset_step < first for m in broken):
            yield opposes(FAIR, "the gradients had grown before")
        elif len(norms) >= 10 and norms[-1] < CALM * float(np.median(norms)):
            yield supports(SLIGHT, f"the gradient norm was as usual just before, {norms[-1]:.3g}")

    def advise(self, case: Case) -> Advice:
        """Clamp, or use a function that is stable."""
        for hunt in (hunt for hunt in case.hunts[:1] if hunt.is_run and hunt.is_undefined and hunt.line):
            place, _, code = hunt.line.partition(": ")
            return Advice(
                first_fix=f"clamp what goes into {hunt.operation} at {place}, or use a stable form of it",
                code=f"{code}  # with .clamp_min(1e-7), or + 1e-7, before it",
                avoid="do not blame the optimizer or lower the learning rate: the operation is undefined at any rate",
                verify=f"monitor.hunt_nan() on the batch of step {case.onset} finds nothing with the change",
            )
        return Advice(
            first_fix="clamp what goes into the logarithm or the division, or use the stable form of the loss",
            code="loss = -torch.log(p.clamp_min(1e-7))  # or F.cross_entropy(logits, ...), which needs no clamp",
            avoid="do not blame the optimizer or lower the learning rate: the operation is undefined at any rate",
            verify=f"the batch of step {case.onset} gives a finite loss with the change",
        )
