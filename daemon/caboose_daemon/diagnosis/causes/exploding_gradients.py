"""The gradient grows on its way back through the model, and nothing holds it: depth, recurrence, no clipping."""

from collections.abc import Iterator

import numpy as np

from caboose_daemon.diagnosis import anatomy, beginnings, growth
from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import Cause
from caboose_daemon.diagnosis.evidence import FAIR, SLIGHT, STRONG, Evidence, opposes, supports
from caboose_daemon.incidents.causal_links import BREAKS
from caboose_daemon.incidents.diagnosis_record import Advice
from caboose_daemon.incidents.episodes import Episode

SUDDEN = 1.5
"""A norm that stood below so many times its level until the step before jumped out of calm."""
LONG = 20
GREW = 3.0
"""How many times its earlier level the norm must have reached before the break to have grown."""
DEEP = 12


class ExplodingGradients(Cause):
    """Gradients that grow from step to step until the weights are thrown away."""

    id = "exploding_gradients"
    title = "gradients explode"
    explains = BREAKS | {
        "loss_scale_collapse",
        "activation_collapse",
        "dead_units",
        "saturation",
        "clipping",
        "oscillation",
        "lr_too_high",
    }

    def weigh(self, case: Case) -> Iterator[Evidence]:
        """A norm that rose before anything else did, with nothing to hold it."""
        explosion = case.episode("gradient_explosion")
        norms = case.before("grad_norm", 100)
        grown, growing = _growth(norms), growth.before_break(case)
        if explosion is not None:
            yield from self._rise(case, explosion, grown)
        elif growing is None and case.is_quiet("gradient_explosion") and case.sees("gradients"):
            yield opposes(STRONG, "the gradient norm never left its level")
        if grown is not None and grown > GREW:
            yield supports(STRONG, f"the norm had grown {grown:.2g} times over the {len(norms)} steps before")
        elif grown is None and growing is not None:
            yield supports(STRONG, growing.text)
        if explosion is not None or growing is not None:
            yield from self._hold(case)
        if case.found("bad_batch"):
            yield opposes(STRONG, "the batch itself stands out")
        update = max(case.most("lr_too_high", "update_ratio") or 0.0, case.most("lr_too_high", "rewritten") or 0.0)
        jump = beginnings.jump(case)
        if update > 0.1 and case.began_early:
            yield opposes(FAIR, f"weight matrices moved by {100 * update:.2g} % in a step from the start: the rate")
        elif case.began_early and case.found("lr_too_high"):
            yield opposes(FAIR, "the first steps were too large: the gradient had no time to grow")
        if jump is not None and case.found("lr_too_high"):
            text = f"the loss had jumped from {jump.first:.3g} to {jump.peak:.3g} before a level of the norm was known"
            yield opposes(FAIR, text)

    def _rise(self, case: Case, explosion: Episode, grown: float | None) -> Iterator[Evidence]:
        """How high, how long, how suddenly, and whether the loss followed."""
        level, peak = explosion.worst.values.get("level", 0.0), explosion.worst.values.get("peak", 0.0)
        if level > 0 and np.isfinite(peak):
            yield supports(FAIR, f"the gradient norm reached {peak:.3g}, {peak / level:.3g} times its level")
        lasted = explosion.last.step - explosion.first.onset_step + 1
        if lasted >= LONG * case.gap:
            yield supports(SLIGHT, f"it has lasted for {lasted} steps")
        if grown is not None and grown < SUDDEN:
            yield opposes(FAIR, "the norm jumped out of calm within one step: growth would have shown")
            return
        later = [m for rule in ("loss_spike", "divergence", "non_finite") if (m := case.episode(rule)) is not None]
        first = min((m.first.onset_step for m in later), default=None)
        if first is not None and first > explosion.first.onset_step:
            ahead = first - explosion.first.onset_step
            yield supports(FAIR, f"it showed {ahead} steps before the loss did")

    def _hold(self, case: Case) -> Iterator[Evidence]:
        """What the model has to hold a gradient with."""
        clipped = anatomy.is_clipped(case)
        if clipped is False:
            yield supports(SLIGHT, "gradients are not clipped")
        elif clipped:
            yield opposes(FAIR, "gradients are clipped")
        if anatomy.kinds(case) & set(anatomy.RECURRENT):
            yield supports(FAIR, "the model is recurrent: a gradient passes the same weights at every time step")
        elif anatomy.depth(case) >= DEEP and not anatomy.has_norms(case):
            yield supports(FAIR, f"{anatomy.depth(case)} weight matrices in a row, without a norm layer")

    def advise(self, case: Case) -> Advice:
        """Clip at a norm that is usual for this run."""
        level = case.value("gradient_explosion", "level")
        limit = f"{level * 2:.2g}" if level is not None and 0.05 < level < 50 else "1.0"
        return Advice(
            first_fix=f"clip the gradient norm at {limit}, and go back to a checkpoint from before step {case.onset}",
            code=f"torch.nn.utils.clip_grad_norm_(model.parameters(), {limit})  # before optimizer.step()",
            avoid="do not restart from the last checkpoint unchanged: its weights are on the same way",
            verify="the norm stays within a few times its level, and fewer than one step in ten is clipped",
        )


def _growth(norms: "np.ndarray[tuple[int, ...], np.dtype[np.float64]]") -> float | None:
    """The norm of the last five steps over that of the first half; None where there is too little to tell."""
    if len(norms) < 20:
        return None
    first = float(np.median(norms[: len(norms) // 2]))
    return float(np.median(norms[-5:])) / first if first > 0 else None
