"""Each layer passes only a part of the gradient, and there are too many layers in a row."""

from collections.abc import Iterator

import numpy as np

from caboose_daemon.diagnosis import model_facts
from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import FAIR, SLIGHT, STRONG, Cause, Evidence, opposes, supports
from caboose_daemon.diagnosis.recent_numbers import GRADIENT_NORM
from caboose_daemon.incidents.causal_links import STANDS_STILL
from caboose_daemon.incidents.diagnosis_record import Advice

DEEP = 6
NO_GRADIENT = 1e-6
"""Gradient norm of a whole model that has not converged, below which no layer learns."""
MIN_POINTS = 20


class VanishingDepth(Cause):
    """Depth without skip connections or norms, mostly with sigmoid or tanh."""

    id = "vanishing_depth"
    title = "gradient vanishing with depth"
    is_plain = True
    explains = STANDS_STILL | {"gradient_vanishing", "lr_too_low", "frozen_parameters"}

    def weigh(self, case: Case) -> Iterator[Evidence]:
        first, last = case.value("gradient_vanishing", "first_rms"), case.value("gradient_vanishing", "last_rms")
        if first is None or last is None:
            if not case.layers:  # a log
                yield from self._weigh_norm(case)
            elif case.is_quiet("gradient_vanishing") and case.sees("gradients"):
                yield opposes(STRONG, "gradients reach the first layers")
            return
        depth = model_facts.depth(case)
        yield supports(
            STRONG, f"gradient falls from {last:.1e} to {first:.1e} per element over {depth} weight matrices"
        )
        flat = sorted(model_facts.kinds(case) & set(model_facts.SATURATING))
        if flat and depth >= DEEP:
            part = "at most a quarter" if "sigmoid" in flat else "only a part"
            yield supports(FAIR, f"each {flat[0]} passes {part} of the gradient")
        if model_facts.has_norms(case):
            yield opposes(SLIGHT, "the model has norm layers")
        elif depth >= DEEP:
            yield supports(SLIGHT, "no norm layers")
        if case.found("saturation"):
            yield opposes(FAIR, "saturated units alone would stop the gradient")
        if case.found("dead_units", "activation_collapse"):
            yield opposes(FAIR, "dead or collapsed units alone would stop the gradient")
        ratio = model_facts.init_ratio(case)
        if ratio is not None and ratio[1] > 2.5:
            yield opposes(FAIR, f"initial weights of {ratio[1]:.2g}x He initialisation alone would stop the gradient")
        elif ratio is not None and ratio[1] < model_facts.NO_INIT:
            text = f"initial weights at most {ratio[1]:.2g}x those of He initialisation pass no gradient at any depth"
            yield opposes(STRONG, text)

    def _weigh_norm(self, case: Case) -> Iterator[Evidence]:
        """The norm of the whole model, where a log has nothing else."""
        norms = case.curve("grad_norm")
        norms = norms[np.isfinite(norms)]
        if len(norms) >= MIN_POINTS and 0.0 < (highest := float(np.quantile(norms, 0.95))) < NO_GRADIENT:
            usual = " to ".join(f"{limit:g}" for limit in GRADIENT_NORM)
            yield supports(STRONG, f"gradient norm is {highest:.1e} at most, where {usual} is usual: nothing arrives")

    def advise(self, case: Case) -> Advice:
        return Advice(
            first_fix="use ReLU or GELU instead of sigmoid or tanh, with a norm layer and a skip connection per block",
            code="x = x + F.gelu(linear(norm(x)))  # was x = torch.sigmoid(linear(x))",
            avoid="do not raise the learning rate or train longer: the last layers break before the first ones learn",
            verify="the first layer's gradient per element is within a factor of 100 of the last one's",
        )
