"""The clipping limit is far below the usual gradient norm, so every step is cut."""

from collections.abc import Iterator

import numpy as np

from caboose_daemon.diagnosis import model_facts
from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import FAIR, SLIGHT, STRONG, Cause, Evidence, opposes, supports
from caboose_daemon.incidents.causal_links import STANDS_STILL
from caboose_daemon.incidents.diagnosis_record import Advice
from caboose_daemon.rules.parts.risky_model import VERY_LARGE
from caboose_daemon.rules.parts.scale_free import is_scale_free

STEADY = 3.0
"""Ratio of the 90th percentile of the norms to their median, below which the norm is steady."""


class ClipTooTight(Cause):
    """A clipping limit that cuts most steps."""

    id = "clip_too_tight"
    title = "gradient clipping too tight"
    is_plain = True
    explains = STANDS_STILL | {"clipping", "lr_too_low"}

    def weigh(self, case: Case) -> Iterator[Evidence]:
        share, ratio = case.value("clipping", "share"), case.value("clipping", "clip_ratio")
        if share is None or ratio is None:
            is_seen = case.is_quiet("clipping")
            yield opposes(STRONG, "few steps or none are clipped" if is_seen else "no clipping seen")
            return
        yield supports(FAIR if share > 0.8 else SLIGHT, f"{100 * share:.0f} % of steps are clipped")
        norms = _norms(case)
        if len(norms) >= 20:
            usual, high = float(np.median(norms)), float(np.quantile(norms, 0.9))
            limit = _limit(case)
            if limit is not None and usual > 2 * limit:
                text = f"usual gradient norm is {usual:.3g}, {usual / limit:.2g}x the clipping limit of {limit:.3g}"
                yield supports(STRONG if usual > 4 * limit else FAIR, text)
            if high < STEADY * usual:
                yield supports(FAIR, f"gradient norm is steady: 90 % of steps below {high:.3g}")
            else:
                yield opposes(FAIR, f"gradient norm is not steady: median {usual:.3g}, 90th percentile {high:.3g}")
        if is_scale_free(case.optimizer.split(",")):
            yield opposes(
                STRONG, f"{case.optimizer} divides gradients by their size: cutting all of them changes no step"
            )
        extent = model_facts.input_range(case)
        if extent is not None and max(-extent[0], extent[1]) > VERY_LARGE and not model_facts.has_embedding(case):
            yield opposes(FAIR, f"inputs of up to {max(-extent[0], extent[1]):.3g} make gradients that need it")
        if case.found("gradient_explosion", "divergence", "lr_too_high"):
            yield opposes(FAIR, "the run is unstable and needs the clipping")

    def advise(self, case: Case) -> Advice:
        norms, limit = _norms(case), _limit(case)
        high = float(np.quantile(norms, 0.9)) if len(norms) else 1.0
        was = f"  # was {limit:.3g}" if limit is not None else ""
        return Advice(
            first_fix="raise the clipping limit above the usual norm, so that only outliers are cut",
            code=f"torch.nn.utils.clip_grad_norm_(model.parameters(), {2 * high:.2g}){was}",
            avoid="do not raise the learning rate instead: a step that is not clipped is then too long",
            verify="fewer than 10 % of steps are clipped, and the loss falls faster",
        )


def _norms(case: Case) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    norms = case.curve("grad_norm")[-500:]
    return norms[np.isfinite(norms) & (norms > 0)]


def _limit(case: Case) -> float | None:
    """The clipping limit, from the clip ratio and the norm of the worst step."""
    finding = case.finding("clipping")
    if finding is None:
        return None
    at = case.curve("grad_norm")[case.steps == finding.step]
    ratio = finding.values.get("clip_ratio")
    limit = float(at[0]) * ratio if len(at) and ratio is not None and np.isfinite(at[0]) else 0.0
    return limit if limit > 0 else None
