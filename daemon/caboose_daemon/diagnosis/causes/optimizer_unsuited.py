"""The optimizer does not suit the model: one rate for layers whose gradients differ by orders of magnitude."""

from collections.abc import Iterator

import numpy as np

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import Cause
from caboose_daemon.diagnosis.evidence import DECISIVE, FAIR, SLIGHT, STRONG, Evidence, opposes, supports
from caboose_daemon.incidents.causal_links import STANDS_STILL
from caboose_daemon.incidents.diagnosis_record import Advice
from caboose_daemon.rules.parts.depth import is_matrix

UNEQUAL = 100.0
"""Times by which the layers' relative updates differ, from which on no single rate suits them all."""


class OptimizerUnsuited(Cause):
    """Plain SGD, where each layer would need a rate of its own."""

    id = "optimizer_unsuited"
    title = "the optimizer does not suit the model"
    explains = STANDS_STILL | {"lr_too_low", "gradient_vanishing"}
    rarity = 1.0

    def weigh(self, case: Case) -> Iterator[Evidence]:
        """Which optimizer, on which model, and how unequal its updates are."""
        name = case.optimizer
        if not name:
            yield opposes(FAIR, "the optimizer is not known")
            return
        if "SGD" not in name:
            yield opposes(DECISIVE, f"{name} scales the step of each parameter by itself")
            return
        momentum = case.hyper("momentum")
        if case.facts.get("attention") is True:
            is_plain = momentum is not None and momentum == 0
            text = f"{name}{' without momentum' if is_plain else ''} on a model with attention"
            yield supports(STRONG if is_plain else FAIR, text)
        elif momentum == 0:
            yield supports(SLIGHT, f"{name} without momentum")
        unequal = _inequality(case)
        if unequal is not None and unequal > UNEQUAL:
            yield supports(FAIR, f"layers move by shares of themselves that differ by {unequal:.2g} times")
        elif unequal is not None and unequal < UNEQUAL / 10:
            yield opposes(STRONG, f"all layers move alike: the largest share is {unequal:.2g} times the smallest")
        if case.found("frozen_parameters", "dead_units", "saturation", "lr_too_high"):
            yield opposes(FAIR, "something else that was found would stop any optimizer")

    def advise(self, case: Case) -> Advice:
        """AdamW with a rate of its own."""
        return Advice(
            first_fix="try AdamW with warm-up and a rate of its own; it cannot take over SGD's",
            code=f"optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)  # was {case.optimizer}",
            avoid="do not change anything else in the same run, or nobody will know what helped",
            verify="the loss falls below its floor within the first tenth of the steps",
        )


def _inequality(case: Case) -> float | None:
    """The largest relative update of a weight matrix over the smallest, at the last closer look."""
    ratios = None if case.sampled is None else case.sampled.layer_values("update_ratio")
    if ratios is None or len(ratios) != len(case.layers):
        return None
    of_matrices = np.array(
        [r for r, layer in zip(ratios.values, case.layers, strict=True) if is_matrix(layer) and r > 0]
    )
    return float(of_matrices.max() / of_matrices.min()) if len(of_matrices) >= 3 else None
