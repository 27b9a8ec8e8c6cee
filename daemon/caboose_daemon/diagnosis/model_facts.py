"""What several causes read from a case about the model: how it is built and initialised, and its last sampled step.

Design
------
The answer is None where nothing was sampled: unknown is not evidence.
"""

import re

import numpy as np

from caboose_daemon.diagnosis import curves
from caboose_daemon.diagnosis.case import Case
from caboose_daemon.rules.parts.depth import is_matrix
from caboose_daemon.rules.parts.risky_model import VERY_LARGE
from caboose_wire import Module

HALF_MAX = 65504.0
"""The largest number float16 holds."""
RECURRENT = ("rnn", "lstm", "gru")
SATURATING = ("sigmoid", "tanh")
RECTIFIED = ("relu", "relu6")
FIRST_STEPS = 10
"""A condition that starts by this step was there from the start."""
MIN_SAMPLES = 4
"""Sampled batches that are alike by no chance."""
NO_INIT = 0.01
"""Initial weights over those of He initialisation that are all but zero: units have nothing to fire on."""
STRETCHED = 2.0
"""Factor by which recurrent weights stretch a state that is never intended; orthogonal ones have 1."""
HUGE_INIT = 4.0
"""Initial weights over those of He initialisation that make any learning rate too high."""
FEW_SAMPLES = 16
"""Samples in a rank's batch below which dead units are not judged."""


def depth(case: Case) -> int:
    """Number of trained weight matrices."""
    return sum(layer.trainable and is_matrix(layer) for layer in case.layers)


def kinds(case: Case) -> frozenset[str]:
    """The classes of the model's modules and activations, in lower case."""
    found = [module.kind for module in case.modules] + [layer.kind for layer in case.layers]
    found += re.split(r"[,\s]+", case.fact("activations"))
    return frozenset(kind.lower() for kind in found if kind)


def is_linear(case: Case) -> bool:
    """Whether the model, as far as its modules show, is a linear function of its inputs."""
    if case.setting("linear_pairs") and not case.fact("activations"):
        return True
    plain = ("Linear", "Embedding", "EmbeddingBag", "Identity", "Flatten")
    known = [module.kind for module in case.modules]
    are_plain = all(kind in plain or kind.startswith(("Conv", "BatchNorm", "AvgPool")) for kind in known)
    return bool(known) and not case.fact("activations") and are_plain


def has_norms(case: Case) -> bool:
    """Whether the model has norm layers."""
    return bool(case.fact("norms")) or any("norm" in kind for kind in kinds(case))


def has_batch_norms(case: Case) -> bool:
    """Whether the model has norms that take their statistics from the batch."""
    return "batchnorm" in case.fact("norms").lower() or any("batchnorm" in kind for kind in kinds(case))


def has_embedding(case: Case) -> bool:
    """Whether the model takes indices, so that its inputs are no measured numbers."""
    return any("embedding" in kind for kind in kinds(case))


def last_module(case: Case) -> Module | None:
    """The module that was listed last, which in most models gives the output; None where none is known."""
    return case.modules[-1] if case.modules else None


def is_clipped(case: Case) -> bool | None:
    """Whether gradients were clipped at the last sampled step."""
    if not case.sees("clipping") or case.sampled is None or not case.sampled.reports:
        return None
    clippings = [report.clipping for report in case.sampled.reports.values()]
    return any(clipping is not None and clipping.max_norm is not None for clipping in clippings)


def init_ratio(case: Case) -> tuple[float, float] | None:
    """Lowest and highest standard deviation of the layers' initial weights, relative to He initialisation."""
    lowest, highest = case.setting("init_he_min"), case.setting("init_he_max")
    return None if lowest is None or highest is None else (lowest, highest)


def stretch(case: Case) -> float | None:
    """The factor by which initial recurrent weights stretch a state, where that is too much; None where it is not."""
    factor = case.setting("init_recurrent")
    return factor if factor is not None and factor > STRETCHED else None


def input_range(case: Case) -> tuple[float, float] | None:
    """Lowest and highest element of the batches of the last sampled step; without one, as it was given otherwise."""
    if case.sampled is None:
        last = case.input_ranges[-1] if case.input_ranges else None
        return None if last is None else (last.lowest, last.highest)
    seen = [report.batch for report in case.sampled.reports.values() if report.batch is not None]
    lows = [batch.lowest for batch in seen if batch.lowest is not None and np.isfinite(batch.lowest)]
    highs = [batch.highest for batch in seen if batch.highest is not None and np.isfinite(batch.highest)]
    return (min(lows), max(highs)) if lows and highs else None


def wrong_from_the_start(case: Case) -> str | None:
    """What made the first loss far worse than a guess, before any step was taken; None where nothing is known to."""
    excess, weights, extent = curves.first_excess(case), init_ratio(case), input_range(case)
    if excess is not None and excess < curves.FAR_OFF:
        return None
    if weights is not None and weights[1] > HUGE_INIT:
        return f"initial weights are {weights[1]:.2g}x those of He initialisation"
    if extent is not None and max(-extent[0], extent[1]) > VERY_LARGE and not has_embedding(case):
        return f"inputs range from {extent[0]:.3g} to {extent[1]:.3g}"
    return None


def has_constant_inputs(case: Case) -> bool:
    """Whether each sampled batch had one and the same number in all elements, or all had exactly one odd range."""
    seen = case.input_ranges
    if len(seen) < min_samples(case) or has_embedding(case):
        return False
    ranges = {(one.lowest, one.highest, one.mean) for one in seen}
    is_flat = all(low == high for low, high, _ in ranges)
    return is_flat or (len(ranges) == 1 and are_the_same(*next(iter(ranges))))


def min_samples(case: Case) -> int:
    """Sampled batches that are alike by no chance: fewer where their means are known too."""
    return MIN_SAMPLES if any(one.mean is None for one in case.input_ranges) else MIN_SAMPLES // 2


def are_the_same(low: float, high: float, mean: float | None) -> bool:
    """Whether batches with these limits and this mean have the same elements.

    Data with natural limits, such as those of images after a normalisation, have them in every batch. Where the mean is
    not known, limits that are alike on both sides, or round, may be such.
    """
    return mean is not None or (any(round(limit, 2) != limit for limit in (low, high)) and low != -high)


def lost_gradient_at(case: Case) -> int | None:
    """The step at which layers lost the gradient they had before: they died, and were not cut off by code."""
    finding = case.finding("frozen_parameters")
    if finding is None or not finding.values.get("without_gradient") or "resume" in case.incident.regimes:
        return None
    return finding.onset_step if finding.onset_step > FIRST_STEPS * case.gap else None


def would_show_dead_units(case: Case) -> bool:
    """Whether dead units would have been reported: the rule is on, and its window has enough samples."""
    batch = case.setting("batch_size")
    return case.is_quiet("dead_units") and (batch is None or batch >= FEW_SAMPLES)


REAL_TARGETS = frozenset({"squared_error", "smooth_l1", "huber"})
"""Kinds of losses, as the agent names them, that take real targets and no logarithm."""


def has_real_targets(case: Case) -> bool:
    """Whether the loss takes real numbers as targets, and nothing that is undefined for some of them."""
    return case.fact("loss_kind") in REAL_TARGETS


def is_half(case: Case) -> bool:
    """Whether anything shows that float16 is in use."""
    is_in_model = "float16" in (case.fact("precision"), case.fact("computes_in"))
    return is_in_model or case.facts.get("scaler") is True or case.found("loss_scale_collapse")
