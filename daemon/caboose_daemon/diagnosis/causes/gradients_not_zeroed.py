"""Gradients are never set to zero: each step adds its gradient to all those before it."""

from collections.abc import Iterator

import numpy as np

from caboose_daemon.diagnosis import curves
from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import DECISIVE, FAIR, STRONG, Cause, Evidence, opposes, supports
from caboose_daemon.incidents.causal_links import BREAKS, STANDS_STILL
from caboose_daemon.incidents.diagnosis_record import Advice

FIRST = 80
"""Steps at the start that are compared: a sum grows fastest there."""
MIN_STEPS = 30
GREW = 4.0
"""Growth of the norm in them that a sum of gradients shows."""
VERY_SMOOTH, SMOOTH, ROUGH = 0.03, 0.04, 0.12
"""Median second difference of the norm's logarithm: a sum hardly changes by one batch, a batch's gradient does."""


class GradientsNotZeroed(Cause):
    """A missing zero_grad."""

    id = "gradients_not_zeroed"
    title = "gradients never zeroed"
    explains = (
        BREAKS
        | STANDS_STILL
        | {"lr_too_high", "oscillation", "clipping", "dead_units", "saturation", "activation_collapse"}
        | {"gradient_vanishing", "frozen_parameters", "config_advice"}
    )
    rarity = 0.5

    def weigh(self, case: Case) -> Iterator[Evidence]:
        norms = case.curve("grad_norm")[:FIRST]
        norms = norms[np.isfinite(norms) & (norms > 0)]
        if len(norms) < MIN_STEPS or not curves.has_first_step(case):
            return
        logs = np.log(norms)
        rough = float(np.median(np.abs(np.diff(logs, 2))))
        grown = float(np.median(norms[-5:]) / np.median(norms[:3]))
        if rough < SMOOTH and grown > GREW:
            yield supports(
                DECISIVE if rough < VERY_SMOOTH and grown > 2 * GREW else STRONG,
                f"gradient norm grew {grown:.2g}x over the first {len(norms)} steps as smoothly as a sum: it changes "
                f"its course by {100 * rough:.1g} % from step to step",
            )
            if _is_linear(norms):
                yield supports(STRONG, "it grew by about as much at each step: every gradient is added to the last")
        elif rough > ROUGH:
            yield opposes(STRONG, f"gradient norm changes by {100 * rough:.2g} % from batch to batch: it is no sum")
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
    first = norms[: max(10, len(norms) // 3)]
    return float(np.corrcoef(np.arange(len(first)), first)[0, 1]) > 0.97
