"""The gradient grows on its way back through the model without a limit: depth, recurrence, no clipping."""

from collections.abc import Iterator

import numpy as np

from caboose_daemon.diagnosis import curves, model_facts
from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import FAIR, SLIGHT, STRONG, Cause, Evidence, opposes, supports
from caboose_daemon.format import amount
from caboose_daemon.incidents.causal_links import BREAKS
from caboose_daemon.incidents.diagnosis_record import Advice
from caboose_daemon.incidents.episodes import Episode

SUDDEN = 1.5
"""Growth of the norm up to the step before, below which the jump was sudden."""
LONG = 20
GREW = 3.0
"""Growth of the norm over its earlier level that counts."""
DEEP = 12


class ExplodingGradients(Cause):
    """Gradients that grow from step to step until they destroy the weights."""

    id = "exploding_gradients"
    title = "exploding gradients"
    is_plain = True
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
        explosion = case.episode("gradient_explosion")
        norms = case.before("grad_norm", 100)
        grown, growing = _growth(norms), curves.growth_before_nan(case)
        if explosion is not None:
            yield from self._rise(case, explosion, grown)
        elif growing is None and case.is_quiet("gradient_explosion"):
            yield opposes(STRONG, "gradient norm stayed at its level")
        if grown is not None and grown > GREW:
            yield supports(STRONG, f"gradient norm grew {grown:.2g}x over the {len(norms)} steps before")
        elif grown is None and growing is not None:
            yield supports(STRONG, growing.text)
        if explosion is not None or growing is not None:
            yield from self._limits(case)
        if case.found("bad_batch"):
            yield opposes(STRONG, "the batch itself is bad")
        update = max(case.most("lr_too_high", "update_ratio") or 0.0, case.most("lr_too_high", "rewritten") or 0.0)
        jump = curves.early_jump(case)
        if update > 0.1 and case.began_early:
            yield opposes(FAIR, f"weights changed by {100 * update:.2g} % per step from the start: learning rate")
        elif case.began_early and case.found("lr_too_high"):
            yield opposes(FAIR, "the first steps were too large: the gradient had no time to grow")
        if jump is not None and case.found("lr_too_high"):
            text = f"loss jumped from {jump.first:.3g} to {jump.peak:.3g} before the norm had a level"
            yield opposes(FAIR, text)

    def _rise(self, case: Case, explosion: Episode, grown: float | None) -> Iterator[Evidence]:
        """How high, how long, how suddenly, and whether the loss followed."""
        level, peak = explosion.worst.values.get("level", 0.0), explosion.worst.values.get("peak", 0.0)
        if level > 0 and np.isfinite(peak):
            yield supports(FAIR, f"gradient norm reached {amount(peak)}, {amount(peak / level)}x its level")
        lasted = explosion.last.step - explosion.first.onset_step + 1
        if lasted >= LONG * case.gap:
            yield supports(SLIGHT, f"lasts for {lasted:,} steps")
        if grown is not None and grown < SUDDEN:
            weight = FAIR if model_facts.kinds(case) & set(model_facts.RECURRENT) else STRONG
            yield opposes(weight, "gradient norm jumped within one step, without growth before")
            return
        later = [m for rule in ("loss_spike", "divergence", "non_finite") if (m := case.episode(rule)) is not None]
        first = min((m.first.onset_step for m in later), default=None)
        if first is not None and first > explosion.first.onset_step:
            ahead = first - explosion.first.onset_step
            yield supports(FAIR, f"gradient norm rose {ahead:,} steps before the loss")

    def _limits(self, case: Case) -> Iterator[Evidence]:
        """What in the model limits a gradient, or lets it grow."""
        clipped = model_facts.is_clipped(case)
        if clipped is False:
            yield supports(SLIGHT, "gradients are not clipped")
        elif clipped:
            yield opposes(FAIR, "gradients are clipped")
        stretch = model_facts.stretch(case)
        if stretch is not None:
            yield supports(STRONG, f"recurrent weights stretch a state {stretch:.2g}x at each step of a sequence")
        elif model_facts.kinds(case) & set(model_facts.RECURRENT):
            yield supports(FAIR, "recurrent model: the gradient passes the same weights at every time step")
        elif model_facts.depth(case) >= DEEP and not model_facts.has_norms(case):
            yield supports(FAIR, f"{model_facts.depth(case)} weight matrices in a row, without a norm layer")

    def advise(self, case: Case) -> Advice:
        level = case.value("gradient_explosion", "level")
        limit = f"{level * 2:.2g}" if level is not None and 0.05 < level < 50 else "1.0"
        return Advice(
            first_fix=f"clip the gradient norm at {limit} and resume from a checkpoint before step {case.onset:,}",
            code=f"torch.nn.utils.clip_grad_norm_(model.parameters(), {limit})  # before optimizer.step()",
            avoid="do not resume from the last checkpoint without a change: its gradients are already growing",
            verify="the norm stays within a few times its level, and fewer than 10 % of steps are clipped",
        )


def _growth(norms: "np.ndarray[tuple[int, ...], np.dtype[np.float64]]") -> float | None:
    """The norm of the last five steps over that of the first half; None where there are too few steps."""
    if len(norms) < 20:
        return None
    first = float(np.median(norms[: len(norms) // 2]))
    return float(np.median(norms[-5:])) / first if first > 0 else None
