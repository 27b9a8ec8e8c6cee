"""The model is at a point with small gradients though the loss is high: a saddle, often of units that started equal."""

from collections.abc import Iterator

import numpy as np

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import FAIR, SLIGHT, STRONG, Cause, Evidence, opposes, supports
from caboose_daemon.incidents.diagnosis_record import Advice

HEALTHY_LR = 0.3
ALIKE = 0.01
"""Standard deviation of a layer's initial weights, relative to He initialisation, below which they are equal."""


class Saddle(Cause):
    """A flat region of the loss, with healthy settings."""

    id = "saddle"
    title = "saddle point"
    explains = frozenset({"plateau", "not_learning", "underfitting", "metric_divergence"})
    rarity = 0.5

    def weigh(self, case: Case) -> Iterator[Evidence]:
        lr, peak = case.lr_now, case.lr_peak
        if lr is not None and peak:
            if lr < HEALTHY_LR * peak:
                yield opposes(
                    STRONG, f"learning rate is down to {100 * lr / peak:.1g} % of its peak: that alone would stop it"
                )
            else:
                start, level = case.value("plateau", "start") or case.value("not_learning", "start"), case.level
                if start and level is not None and level > 0.5 * start:
                    text = f"loss flat at {level:.4g} (start {start:.4g}) at a healthy learning rate of {lr:.2g}"
                    yield supports(FAIR, text)
        alike = case.setting("init_he_min")
        if alike is not None and alike < ALIKE:
            text = f"initial weights of a layer are almost equal ({alike:.1g}x He initialisation)"
            yield supports(STRONG, f"{text}, so its units get equal gradients")
        norms = case.curve("grad_norm")
        norms = norms[np.isfinite(norms)]
        if len(norms) >= 100:
            share = float(np.median(norms[-50:]) / max(np.median(norms[:20]), 1e-30))
            if share < 0.2:
                yield supports(SLIGHT, f"gradient norm fell to {100 * share:.2g} % of its first value")
        if case.found("dead_units", "saturation", "frozen_parameters", "gradient_vanishing"):
            yield opposes(FAIR, "layers that cannot learn explain it better")
        if case.found("not_learning") and case.update_ratio is not None and case.update_ratio > 1e-3:
            yield opposes(SLIGHT, f"weights still change by {100 * case.update_ratio:.2g} % per step")

    def advise(self, case: Case) -> Advice:
        lr = case.lr_now
        rate = f", and raise the learning rate from {lr:.2g} to {3 * lr:.2g} for a few hundred steps" if lr else ""
        return Advice(
            first_fix=f"check that no layer starts with equal or zero weights (torch's default is fine){rate}",
            code="torch.nn.init.kaiming_normal_(layer.weight)  # instead of constant_ or zeros_",
            avoid="do not change the optimizer first: no optimizer separates equal weights",
            verify="the loss falls within a few hundred steps, and the units of a layer differ from each other",
        )
