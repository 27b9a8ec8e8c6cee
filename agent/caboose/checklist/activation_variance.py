"""activation_variance: whether signals keep their size on the way through the layers."""

import math

from caboose.checklist.flight import Flight, number
from caboose.checklist.verdict import CheckResult, failed, passed, skipped, warned

ASKS = "Do signals keep their size over the depth?"
KINDS = ("Linear", "Conv1d", "Conv2d", "Conv3d", "Conv1D")
"""Modules whose outputs are compared: before any activation. Conv1D is the linear layer of GPT-2 in transformers."""
FADED, GROWN = 1e-2, 1e2
"""The last relative to the first."""


def run(flight: Flight) -> CheckResult:
    """Checks the outputs of the first batch."""
    found = flight.inspection
    if found.blindness:
        return skipped(f"activations cannot be seen: {found.blindness}")
    seen = [look for look in found.activations if look.kind in KINDS]
    bad = [look for look in found.activations if look.verdict in ("not finite", "dead", "saturated", "huge")]
    if bad:
        worst = bad[0]
        numbers = {"dead": worst.dead, "saturated": worst.saturated}
        share = numbers.get(worst.verdict)
        measured = f"{share:.0%} {worst.verdict}" if share is not None else worst.verdict
        more = f"; {len(bad) - 1} more" if len(bad) > 1 else ""
        says = f"the output of {worst.name} is {worst.verdict}{more}"
        if worst.verdict == "not finite":
            return failed(measured, says, "look at its inputs and weights with caboose.inspect")
        return warned(measured, says, "normalise before it, or begin with smaller weights")
    if len(seen) < 2:
        return skipped("there are fewer than two linear or convolutional layers")
    hidden = seen[:-1] if len(seen) > 2 else seen  # the last one's size depends on the loss
    first, last = hidden[0].std, hidden[-1].std
    ratio = last / first if first else math.inf
    measured = f"x {number(ratio)}"
    over = f"std {number(first)} in {hidden[0].name}, {number(last)} in {hidden[-1].name}"
    if ratio < FADED:
        return warned(
            measured, f"signals fade: {over}", "use He initialisation for ReLU, residual connections or normalisation"
        )
    if ratio > GROWN:
        return warned(
            measured, f"signals grow: {over}", "begin with smaller weights, scale residual branches, or normalise"
        )
    return passed(measured, over)
