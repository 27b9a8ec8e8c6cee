"""The loss takes a logarithm of zero, divides by zero, or does another undefined operation on some batch."""

from collections.abc import Iterator

import numpy as np

from caboose_daemon.diagnosis import curves, model_facts
from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import DECISIVE, FAIR, SLIGHT, STRONG, Cause, Evidence, opposes, supports
from caboose_daemon.diagnosis.hunts import Hunted
from caboose_daemon.incidents.diagnosis_record import Advice

CALM = 2.0
"""Ratio of a norm to its median below which it is usual."""


class LogOfZero(Cause):
    """An undefined operation in the loss."""

    id = "log_of_zero"
    title = "log(0) or 0/0 in the loss"
    is_plain = True
    explains = frozenset({"non_finite", "loss_spike", "divergence", "gradient_explosion"})
    """Near zero the logarithm and its slope are large before they are infinite."""

    def weigh(self, case: Case) -> Iterator[Evidence]:
        finding = case.finding("non_finite")
        if finding is None:
            return
        for hunt in _of_the_cause(case):
            if hunt.is_run and hunt.is_undefined:
                yield supports(DECISIVE, f"NaN hunt: {hunt.summary}")
            elif hunt.is_run:
                yield opposes(FAIR, f"NaN hunt found {hunt.operation or 'no logarithm or division'}")
            else:
                yield opposes(STRONG, f"NaN hunt: {hunt.summary}")
        if finding.phase == "input":
            yield opposes(STRONG, "the inputs were already not finite")
        elif finding.layers and finding.phase == "forward":
            yield opposes(FAIR, f"started in {finding.layers[0]}, before the loss")
        elif finding.phase == "forward":
            if finding.values.get("was_looked_into"):
                yield supports(STRONG, "the loss was the first bad number: all activations were finite")
            else:
                yield supports(FAIR, "the loss was the first bad number that was seen")
        if model_facts.is_half(case):
            weight = STRONG if finding.values.get("loss_is_infinite") else FAIR
            yield opposes(weight, "float16 is in use, and its overflow makes the loss NaN or infinite too")
        elif finding.values.get("loss_is_infinite"):
            is_sudden = curves.growth_before_nan(case) is None
            text = "the first bad loss was infinite, as -log(0) is, and not NaN"
            yield supports(STRONG if is_sudden else FAIR, text + (": it had not grown before" if is_sudden else ""))
        elif "loss_is_infinite" in finding.values and not case.hunts:
            yield opposes(SLIGHT, "the first bad loss was NaN, and not infinite, as -log(0) is")
        if model_facts.has_real_targets(case) and not finding.values.get("loss_is_infinite"):
            yield opposes(FAIR, f"the loss is a {case.fact('loss_kind')}, which is finite for finite numbers")
        elif finding.values.get("bad_inputs") == 0:
            yield supports(SLIGHT, "all elements of the batch were finite")
        largest = finding.values.get("largest_activation")
        if largest is not None and np.isfinite(largest) and largest < model_facts.HALF_MAX / 10:
            yield supports(SLIGHT, f"largest activation {largest:.3g} at the last sample: far from overflow")
        norms = case.before("grad_norm")
        broken = [m for rule in ("gradient_explosion", "divergence") if (m := case.episode(rule)) is not None]
        first = min(m.first.onset_step for m in case.incident.episodes if m.rule == "non_finite")
        growing = curves.growth_before_nan(case)
        if growing is not None:
            yield opposes(STRONG, growing.text)
        elif any(m.first.onset_step < first for m in broken):
            yield opposes(FAIR, "gradients or loss had grown before")
        elif len(norms) >= 10 and norms[-1] < CALM * float(np.median(norms)):
            yield supports(SLIGHT, f"gradient norm was usual just before: {norms[-1]:.3g}")

    def advise(self, case: Case) -> Advice:
        for hunt in (hunt for hunt in case.hunts[:1] if hunt.is_run and hunt.is_undefined and hunt.line):
            place, _, code = hunt.line.partition(": ")
            return Advice(
                first_fix=f"clamp the input of {hunt.operation} at {place}, or use a numerically stable form",
                code=f"{code}  # with .clamp_min(1e-7), or + 1e-7, before it",
                avoid="do not change optimizer or learning rate: the operation is undefined at any rate",
                verify=f"after the change monitor.hunt_nan() on the batch of step {case.onset:,} finds nothing",
            )
        return Advice(
            first_fix="clamp the input of the logarithm or division, or use the numerically stable form of the loss",
            code="loss = -torch.log(p.clamp_min(1e-7))  # or F.cross_entropy(logits, targets), which needs no clamp",
            avoid="do not change optimizer or learning rate: the operation is undefined at any rate",
            verify=f"after the change the batch of step {case.onset:,} has a finite loss",
        )


def _of_the_cause(case: Case) -> tuple[Hunted, ...]:
    """The first hunt, if it shows a cause: weights that are bad after a bad loss are its consequence."""
    first = case.hunts[:1]
    if not first or first[0].where != "parameter":
        return first
    norms = case.before("grad_norm", 1)
    was_finite = len(norms) == 1 and np.isfinite(case.curve("grad_norm")[case.steps < case.onset][-1])
    return () if was_finite else first
