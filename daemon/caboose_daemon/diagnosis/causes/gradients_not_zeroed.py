"""Gradients are never set to zero: each step adds its gradient to all those before it."""

from collections.abc import Iterator

import numpy as np

from caboose_daemon.diagnosis import curves
from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import DECISIVE, FAIR, STRONG, Cause, Evidence, opposes, supports
from caboose_daemon.incidents.causal_links import BREAKS, STANDS_STILL
from caboose_daemon.incidents.diagnosis_record import Advice

MIN_STEPS = 30
LONG = 150
"""Steps over which no explosion stays smooth."""
GREW = 4.0
"""Growth of the norm since the first steps that a sum of gradients shows."""
VERY_SMOOTH, SMOOTH, ROUGH = 0.03, 0.04, 0.12
"""Median second difference of the norm's logarithm: a sum hardly changes by one batch, a batch's gradient does."""


class GradientsNotZeroed(Cause):
    """A missing zero_grad."""

    id = "gradients_not_zeroed"
    title = "gradients never zeroed"
    is_plain = True
    explains = (
        BREAKS
        | STANDS_STILL
        | {"lr_too_high", "oscillation", "clipping", "dead_units", "saturation", "activation_collapse"}
        | {"gradient_vanishing", "frozen_parameters", "config_advice", "overfitting", "metric_divergence"}
    )
    rarity = 0.5

    def weigh(self, case: Case) -> Iterator[Evidence]:
        if case.facts.get("keeps_gradients") is True:
            yield supports(DECISIVE, "each gradient was added to the one before it: nothing sets them to zero")
            yield supports(STRONG, "so every step repeats all those before it")
        norms = case.curve("grad_norm")
        norms = norms[np.isfinite(norms) & (norms > 0)]
        if len(norms) < MIN_STEPS or not curves.has_first_step(case):
            return
        rough = float(np.median(np.abs(np.diff(np.log(norms), 2))))
        grown = float(np.median(norms[-10:]) / np.median(norms[:3]))
        if rough > ROUGH:
            yield opposes(STRONG, f"gradient norm changes by {100 * rough:.2g} % from batch to batch: it is no sum")
        elif rough < SMOOTH and grown > GREW and (len(norms) >= LONG or _is_linear(norms)):
            weight = DECISIVE if rough < VERY_SMOOTH and grown > 2 * GREW else STRONG
            text = f"gradient norm grew {grown:.2g}x over {len(norms):,} steps as smoothly as a sum of all gradients"
            yield supports(weight, f"{text}: from step to step it changes its course by {100 * rough:.1g} %")
        elif grown < 1.5:
            yield opposes(FAIR, "gradient norm did not grow from the first step on")

    def advise(self, case: Case) -> Advice:
        return Advice(
            first_fix="call optimizer.zero_grad() once for each optimizer step",
            code="optimizer.zero_grad(set_to_none=True)  # before loss.backward()",
            avoid="do not lower the learning rate or clip: the sum of all gradients is no direction to go",
            verify="the gradient norm of the first steps stays at that of the first one",
        )


def _is_linear(norms: np.ndarray[tuple[int], np.dtype[np.float64]]) -> bool:
    """Whether a line through the first steps explains them: gradients that agree add up."""
    first = norms[: max(10, len(norms) // 2)]
    return float(np.corrcoef(np.arange(len(first)), first)[0, 1]) > 0.97
