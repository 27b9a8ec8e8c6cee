"""The optimizer does not suit the model: one learning rate for layers whose gradients differ by orders of magnitude."""

from collections.abc import Iterator

import numpy as np

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import DECISIVE, FAIR, SLIGHT, STRONG, Cause, Evidence, opposes, supports
from caboose_daemon.incidents.causal_links import STANDS_STILL
from caboose_daemon.incidents.diagnosis_record import Advice
from caboose_daemon.rules.parts.depth import is_matrix

UNEQUAL = 100.0
"""Ratio between the layers' relative updates above which no single rate suits all."""


class OptimizerUnsuited(Cause):
    """Plain SGD, where each layer needs a different learning rate."""

    id = "optimizer_unsuited"
    title = "optimizer that does not suit the model"
    explains = STANDS_STILL | {"lr_too_low", "gradient_vanishing"}
    rarity = 1.0

    def weigh(self, case: Case) -> Iterator[Evidence]:
        name = case.optimizer
        if not name:
            yield opposes(FAIR, "the optimizer is unknown")
            return
        if "SGD" not in name:
            yield opposes(DECISIVE, f"{name} scales the step of each parameter")
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
            yield supports(FAIR, f"update-to-weight ratios of the layers differ by {unequal:.2g}x")
        elif unequal is not None and unequal < UNEQUAL / 10:
            yield opposes(STRONG, f"update-to-weight ratios of the layers differ by only {unequal:.2g}x")
        if case.found("frozen_parameters", "dead_units", "saturation", "lr_too_high"):
            yield opposes(FAIR, "other findings would stop any optimizer")

    def advise(self, case: Case) -> Advice:
        return Advice(
            first_fix="try AdamW with warm-up and a new learning rate; SGD's does not fit it",
            code=f"optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)  # was {case.optimizer}",
            avoid="do not change anything else in the same run: the effect could not be attributed",
            verify="the loss falls below its present level within the first tenth of the steps",
        )


def _inequality(case: Case) -> float | None:
    """The largest update-to-weight ratio of a weight matrix over the smallest, at the last sampled step."""
    ratios = None if case.sampled is None else case.sampled.layer_values("update_ratio")
    if ratios is None or len(ratios) != len(case.layers):
        return None
    of_matrices = np.array(
        [r for r, layer in zip(ratios.values, case.layers, strict=True) if is_matrix(layer) and r > 0]
    )
    return float(of_matrices.max() / of_matrices.min()) if len(of_matrices) >= 3 else None
