"""The model sits where gradients say little though the loss is high: a saddle, often of units that began alike."""

import re
from collections.abc import Iterator

import numpy as np

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import Cause
from caboose_daemon.diagnosis.evidence import FAIR, SLIGHT, STRONG, Evidence, opposes, supports
from caboose_daemon.incidents.diagnosis_record import Advice

HEALTHY_LR = 0.3
ALIKE = 0.01
"""Standard deviation of a layer's first weights, as a share of the usual one, below which they are alike."""


class Saddle(Cause):
    """A standstill of the geometry, not of the settings."""

    id = "saddle"
    title = "a saddle: the model is stuck, though rate and gradients' way are fine"
    explains = frozenset({"plateau", "not_learning", "underfitting", "metric_divergence"})
    rarity = 0.5

    def weigh(self, case: Case) -> Iterator[Evidence]:
        """A healthy rate, a loss that stopped high, gradients that have shrunk, weights that began alike."""
        lr, peak = case.lr_now, case.lr_peak
        if lr is not None and peak:
            if lr < HEALTHY_LR * peak:
                yield opposes(STRONG, f"the rate is down to {lr / peak:.1g} of its peak: that alone would stop it")
            elif case.found("plateau"):
                start, level = case.value("plateau", "start"), case.level
                if start and level is not None and level > 0.5 * start:
                    yield supports(
                        FAIR, f"the loss stopped at {level:.4g}, from {start:.4g}, at a healthy rate of {lr:.2g}"
                    )
        alike = initial_scale(case)
        if alike is not None and alike < ALIKE:
            yield supports(
                STRONG, f"a layer's weights began alike (spread {alike:.1g} of the usual): so do its gradients"
            )
        norms = case.curve("grad_norm")
        norms = norms[np.isfinite(norms)]
        if len(norms) >= 100:
            share = float(np.median(norms[-50:]) / max(np.median(norms[:20]), 1e-30))
            if share < 0.2:
                yield supports(SLIGHT, f"the gradient norm has shrunk to {share:.2g} of what it was")
        if case.found("dead_units", "saturation", "frozen_parameters", "gradient_vanishing"):
            yield opposes(FAIR, "layers that cannot learn explain it better")
        if case.found("not_learning") and case.update_ratio is not None and case.update_ratio > 1e-3:
            yield opposes(SLIGHT, f"weights still move by {100 * case.update_ratio:.2g} % of themselves in a step")

    def advise(self, case: Case) -> Advice:
        """Break the symmetry; push."""
        lr = case.lr_now
        rate = f", and raise the rate from {lr:.2g} to {3 * lr:.2g} for some hundred steps" if lr else ""
        return Advice(
            first_fix=f"check that no layer starts from equal or zero weights (torch's own init is fine){rate}",
            code="torch.nn.init.kaiming_normal_(layer.weight)  # instead of constant_ or zeros_",
            avoid="do not change the optimizer first: from equal weights all of them stay there",
            verify="the loss leaves its level within some hundred steps; units of a layer differ from each other",
        )


def initial_scale(case: Case) -> float | None:
    """The smallest spread of a layer's first weights, as a share of what He's rule gives; None if not known."""
    found = re.match(r"He ([0-9.e+-]+?)\.\.", case.fact("init_std_ratio"))
    return float(found.group(1)) if found else None
