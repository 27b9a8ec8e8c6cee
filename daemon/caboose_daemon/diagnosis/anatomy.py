"""What a case tells about the model itself: how it is built and begun, and what its last closer look showed.

Design
------
Questions that several causes ask, each answered with None where nobody looked: not knowing is not evidence.
"""

import re

import numpy as np

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.rules.parts.depth import is_matrix

HALF_MAX = 65504.0
"""The largest number float16 holds."""
RECURRENT = ("rnn", "lstm", "gru")
FLAT = ("sigmoid", "tanh")
RECTIFIED = ("relu", "relu6")
FIRST_STEPS = 10
"""What begins by this step was so from the start."""
FEW_SAMPLES = 16
"""Samples in a rank's batch below which nothing is said of dead units."""


def depth(case: Case) -> int:
    """How many weight matrices are trained."""
    return sum(layer.trainable and is_matrix(layer) for layer in case.layers)


def kinds(case: Case) -> frozenset[str]:
    """The classes of the model's modules and activations, in small letters."""
    told = [module.kind for module in case.modules] + [layer.kind for layer in case.layers]
    told += re.split(r"[,\s]+", case.fact("activations"))
    return frozenset(kind.lower() for kind in told if kind)


def has_norms(case: Case) -> bool:
    """Whether a layer normalises what passes."""
    return bool(case.fact("norms")) or any("norm" in kind for kind in kinds(case))


def is_clipped(case: Case) -> bool | None:
    """Whether gradients are clipped, as the last closer look saw it."""
    if not case.sees("clipping") or case.sampled is None or not case.sampled.reports:
        return None
    return any(report.clipping is not None for report in case.sampled.reports.values())


def init_ratio(case: Case) -> tuple[float, float] | None:
    """Lowest and highest standard deviation of the layers' first weights, over what He's rule gives."""
    found = re.match(r"He ([^.\s]*(?:\.\d+)?(?:e[+-]?\d+)?)\.\.([^,\s]+)", case.fact("init_std_ratio"))
    if found is None:
        return None
    try:
        return float(found[1]), float(found[2])
    except ValueError:
        return None


def input_range(case: Case) -> tuple[float, float] | None:
    """Lowest and highest element of the batches of the last closer look."""
    if case.sampled is None:
        return None
    seen = [report.batch for report in case.sampled.reports.values() if report.batch is not None]
    lows = [batch.lowest for batch in seen if batch.lowest is not None and np.isfinite(batch.lowest)]
    highs = [batch.highest for batch in seen if batch.highest is not None and np.isfinite(batch.highest)]
    return (min(lows), max(highs)) if lows and highs else None


def loses_gradient_at(case: Case) -> int | None:
    """The step from which on layers had no gradient that had one before: they died, and were not cut off by code."""
    finding = case.finding("frozen_parameters")
    if finding is None or not finding.values.get("without_gradient") or "resume" in case.incident.regimes:
        return None
    return finding.onset_step if finding.onset_step > FIRST_STEPS * case.gap else None


def shows_dead_units(case: Case) -> bool:
    """Whether dead units would have been seen: enough samples pass in the window over which they are looked for."""
    batch = case.setting("batch_size")
    return case.is_quiet("dead_units") and (batch is None or batch >= FEW_SAMPLES)


def is_half(case: Case) -> bool:
    """Whether anything says that float16 is in use."""
    return case.fact("precision") == "float16" or case.facts.get("scaler") is True or case.found("loss_scale_collapse")
