"""Gradients are clipped to a norm far below the usual one, so that every step is cut."""

from collections.abc import Iterator

import numpy as np

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import Cause
from caboose_daemon.diagnosis.evidence import FAIR, SLIGHT, STRONG, Evidence, opposes, supports
from caboose_daemon.incidents.causal_links import STANDS_STILL
from caboose_daemon.incidents.diagnosis_record import Advice

STEADY = 3.0
"""Times the median that nine of ten norms stay below, where there is nothing to guard against."""


class ClipTooTight(Cause):
    """The clipper, not the learning rate, sets the length of the steps."""

    id = "clip_too_tight"
    title = "gradients are clipped far too tightly"
    explains = STANDS_STILL | {"clipping", "lr_too_low"}

    def weigh(self, case: Case) -> Iterator[Evidence]:
        """How much is cut, how often, and whether there is anything to guard against."""
        share, ratio = case.value("clipping", "share"), case.value("clipping", "clip_ratio")
        if share is None or ratio is None:
            is_seen = case.is_quiet("clipping")
            yield opposes(STRONG, "clipping acts on few steps or none" if is_seen else "no clipping was seen")
            return
        yield supports(FAIR if share > 0.8 else SLIGHT, f"{share:.0%} of the steps are clipped")
        norms = _norms(case)
        if len(norms) >= 20:
            usual, high = float(np.median(norms)), float(np.quantile(norms, 0.9))
            limit = _limit(case)
            if limit is not None and usual > 2 * limit:
                text = f"the usual norm is {usual:.3g}, {usual / limit:.2g} times the clipper's {limit:.3g}"
                yield supports(STRONG if usual > 4 * limit else FAIR, text)
            if high < STEADY * usual:
                yield supports(FAIR, f"the norm is steady: nine of ten steps stay below {high:.3g}")
            else:
                yield opposes(FAIR, f"the norm is anything but steady: {usual:.3g} usually, {high:.3g} on every tenth")
        if case.found("gradient_explosion", "divergence", "lr_too_high"):
            yield opposes(FAIR, "the run would break without the clipper: what it cuts is real")

    def advise(self, case: Case) -> Advice:
        """A norm above the usual one."""
        norms, limit = _norms(case), _limit(case)
        high = float(np.quantile(norms, 0.9)) if len(norms) else 1.0
        was = f"  # was {limit:.3g}" if limit is not None else ""
        return Advice(
            first_fix="clip above the usual norm, so that only outliers are cut",
            code=f"torch.nn.utils.clip_grad_norm_(model.parameters(), {2 * high:.2g}){was}",
            avoid="do not raise the learning rate to make up for it: a step that is not clipped is then too long",
            verify="fewer than one step in ten is clipped, and the loss falls faster",
        )


def _norms(case: Case) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    norms = case.curve("grad_norm")[-500:]
    return norms[np.isfinite(norms) & (norms > 0)]


def _limit(case: Case) -> float | None:
    """The clipper's norm: by what the worst step was multiplied, times its norm."""
    finding = case.finding("clipping")
    if finding is None:
        return None
    at = case.curve("grad_norm")[case.steps == finding.step]
    ratio = finding.values.get("clip_ratio")
    return float(at[0]) * ratio if len(at) and ratio is not None and np.isfinite(at[0]) else None
