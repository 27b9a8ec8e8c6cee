"""The loss does not depend on the parameters: a detach, a copy or a no_grad cuts the graph."""

from collections.abc import Iterator

import numpy as np

from caboose_daemon.diagnosis import model_facts
from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import DECISIVE, FAIR, SLIGHT, STRONG, Cause, Evidence, opposes, supports
from caboose_daemon.diagnosis.causes.parameters_frozen import zero_gradients
from caboose_daemon.incidents.causal_links import BREAKS, STANDS_STILL
from caboose_daemon.incidents.diagnosis_record import Advice

MOST = 0.3
"""Share of the trainable parameters, those that only an optimizer has included."""
ALL_DEAD = 0.99
"""Share of dead units of a layer that passes no gradient on."""
MANY = 0.5
"""Share of layers without gradient at which the graph is cut near the loss."""


class GraphDisconnected(Cause):
    """A cut in the graph between loss and parameters."""

    id = "graph_disconnected"
    title = "loss disconnected from the parameters"
    is_plain = True
    explains = STANDS_STILL | {"frozen_parameters", "lr_too_low", "metric_divergence", "gradient_vanishing"}

    def weigh(self, case: Case) -> Iterator[Evidence]:
        if not case.sees("gradients"):
            return
        if case.facts.get("never_steps") is True:
            yield opposes(DECISIVE, "no optimizer has taken a step, so no gradient was read")
            return
        norms = case.curve("grad_norm")
        known = norms[np.isfinite(norms)]
        without = case.value("frozen_parameters", "without_gradient") or 0.0
        total = sum(layer.trainable and layer.held for layer in case.layers)
        missing = sum(layer.numel for layer in case.layers if layer.trainable and not layer.held)
        if missing > MOST * sum(layer.numel for layer in case.layers if layer.trainable):
            yield opposes(DECISIVE, "what the model trains is in no optimizer, so its gradients were not read")
            return
        has_none = len(norms) >= 20 and (not len(known) or not known.any())
        fell = _fell(case) if has_none else None
        if fell is not None:
            yield opposes(STRONG, f"the loss fell from {fell[0]:.3g} to {fell[1]:.3g}: some weights move")
        elif has_none:
            yield supports(DECISIVE, f"no parameter had a gradient on any of {len(norms):,} steps, though backward ran")
        elif total and without / total >= MANY:
            yield supports(STRONG, f"{without:.0f} of {total} trainable layers get no gradient")
        elif without:
            yield supports(SLIGHT, f"{without:.0f} trainable layers get no gradient")
        elif len(known) >= 20 and case.is_quiet("frozen_parameters"):
            yield opposes(STRONG, f"gradients reach every layer (norm {np.median(known[-50:]):.2g})")
        if (case.value("dead_units", "share") or 0.0) > ALL_DEAD:
            yield opposes(DECISIVE, "a layer has no unit that fires: the graph is whole, and its gradient is zero")
        if case.found(*BREAKS, "oscillation"):
            yield opposes(STRONG, "the loss jumps or swings: weights move")
        if without and zero_gradients(case):
            yield opposes(STRONG, "these layers have a gradient, of exactly zero: the graph is whole")
        lost = model_facts.lost_gradient_at(case)
        if lost is not None:
            yield opposes(STRONG, f"they had gradients until step {lost:,}: a cut graph has none from the start")
        if case.update_ratio is not None and case.update_ratio > 0 and not without:
            yield opposes(FAIR, f"weights change by {case.update_ratio:.1g} of their norm per step")

    def advise(self, case: Case) -> Advice:
        layers = case.finding("frozen_parameters").layers if case.found("frozen_parameters") else ()  # type: ignore[union-attr]  # found
        where = f" after {layers[0]}" if layers else " between the model's output and the loss"
        return Advice(
            first_fix=f"search for .detach(), .data, .item(), .numpy(), argmax or torch.no_grad(){where}",
            code="assert loss.grad_fn is not None and next(model.parameters()).grad is not None  # after backward",
            avoid="do not raise the learning rate or train longer: a weight without gradient never moves",
            verify="every parameter has a gradient after one backward, and the loss falls on one repeated batch",
        )


def _fell(case: Case) -> tuple[float, float] | None:
    """The first and the last level of the loss, if it fell by far more than it scatters."""
    losses = case.curve("loss")
    losses = losses[np.isfinite(losses)]
    if len(losses) < 60:
        return None
    first, last = losses[:20], losses[-20:]
    scatter = float(np.std(last))
    then, now = float(np.median(first)), float(np.median(last))
    return (then, now) if then - now > max(3.0 * scatter, 0.02 * abs(then)) else None
