"""Momentum so high that each gradient acts for hundreds of steps: the effective step is far above the learning rate."""

import re
from collections.abc import Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import (
    DECISIVE,
    FAIR,
    SLIGHT,
    STRONG,
    Cause,
    Evidence,
    line_to_set,
    opposes,
    supports,
)
from caboose_daemon.incidents.causal_links import BREAKS, STANDS_STILL
from caboose_daemon.incidents.diagnosis_record import Advice

USUAL, HIGH = 0.96, 0.985
"""Momentum up to which it is usual, and from which it is too high for most runs."""


class MomentumTooHigh(Cause):
    """Momentum that overshoots."""

    id = "momentum_too_high"
    title = "momentum too high"
    is_plain = True
    explains = BREAKS | STANDS_STILL | {"oscillation", "lr_too_high", "clipping", "config_advice", "dead_units"}

    def weigh(self, case: Case) -> Iterator[Evidence]:
        value = momentum(case)
        if value is None:
            yield opposes(FAIR, "momentum is unknown")
        elif value < USUAL:
            yield opposes(DECISIVE, f"momentum {value:g} is usual")
        elif value >= HIGH:
            steps = 1.0 / max(1e-6, 1.0 - value)
            yield supports(STRONG, f"momentum {value:g}: each gradient acts for {steps:,.0f} steps, usual are 10")
            if "SGD" in case.optimizer and case.lr is not None:
                yield supports(FAIR, f"the effective learning rate is {steps:,.0f}x the set one: {case.lr * steps:.2g}")
            if case.found("oscillation", "loss_spike", "divergence"):
                yield supports(FAIR, "the loss overshoots, as with too much momentum")
        else:
            yield supports(SLIGHT, f"momentum {value:g} is high")

    def advise(self, case: Case) -> Advice:
        value = momentum(case)
        was = f"was {value:g}" if value is not None else ""
        is_adam = "Adam" in case.optimizer or case.hyper("momentum") is None
        return Advice(
            first_fix="lower the momentum to 0.9; if it is meant to be so high, divide the learning rate by as much",
            code=line_to_set(case, "betas", "(0.9, 0.999)", was)
            if is_adam
            else line_to_set(case, "momentum", "0.9", was),
            avoid="do not judge the learning rate before: with SGD it acts 1 / (1 - momentum) times",
            verify="the loss no longer swings, at the same learning rate",
        )


def momentum(case: Case) -> float | None:
    """The momentum of the largest group that has one: `momentum`, or the first of `betas`."""
    for group in sorted(case.groups, key=lambda group: -group.num_parameters):
        value, betas = group.settings.get("momentum"), group.settings.get("betas")
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        if isinstance(betas, str) and (found := re.match(r"[(\[]\s*([0-9.e-]+)", betas)):
            return float(found.group(1))
    return None
