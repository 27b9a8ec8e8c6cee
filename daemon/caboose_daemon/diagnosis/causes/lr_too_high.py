"""The learning rate is too high for the model, or for this phase of its training."""

from collections.abc import Iterator

import numpy as np

from caboose_daemon.diagnosis import anatomy, beginnings, growth, lines
from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import Cause
from caboose_daemon.diagnosis.evidence import FAIR, SLIGHT, STRONG, Evidence, opposes, supports
from caboose_daemon.incidents.causal_links import BREAKS, STANDS_STILL
from caboose_daemon.incidents.diagnosis_record import Advice

ADAM_USUAL = 1e-2
"""Above this an Adam-family rate is unusual for anything."""
HEALTHY_UPDATE = 1e-2
"""Share of itself that a weight matrix may move by in a step without anyone minding."""
DEAD_UPDATE = 1e-6
"""Below this a model no longer learns at all, and says nothing about the steps that brought it there."""
NEAR_PEAK, PAST_PEAK = 0.8, 0.2
"""Shares of its peak at which a rate is near it, and well past it."""
MANY = 3


class LrTooHigh(Cause):
    """Steps so large that they undo what they learn."""

    id = "lr_too_high"
    title = "the learning rate is too high"
    explains = (
        BREAKS
        | STANDS_STILL
        | {"lr_too_high", "oscillation", "clipping", "dead_units", "saturation", "activation_collapse"}
        | {"gradient_vanishing", "loss_scale_collapse", "config_advice", "frozen_parameters", "metric_divergence"}
    )

    def weigh(self, case: Case) -> Iterator[Evidence]:
        """Update sizes, the shape of the curve, and whether anything else came first."""
        yield from self._updates(case)
        yield from self._beginning(case)
        correlation = case.value("oscillation", "correlation")
        if correlation is not None:
            amplitude = 100 * (case.value("oscillation", "amplitude") or 0.0)
            how = "alternates from step to step" if correlation < 0 else "swings in waves"
            yield supports(
                STRONG, f"the loss {how}, by {amplitude:.0f} % of its level: each step answers the one before"
            )
        lr = case.lr
        if lr is not None and "Adam" in case.optimizer and lr > ADAM_USUAL:
            yield supports(FAIR, f"a rate of {lr:.3g} is unusually high for {case.optimizer}")
        if case.found(*BREAKS):
            yield from self._break(case)
        dead = case.finding("dead_units")
        if dead is not None and dead.severity == "critical" and case.found("lr_too_high"):
            yield supports(FAIR, "units died as it trained, as steps that are too large make them do")
        lost = anatomy.loses_gradient_at(case)
        if lost is not None and anatomy.kinds(case) & set(anatomy.RECTIFIED):
            yield supports(FAIR, f"layers under ReLUs lost their gradient at step {lost}, as large steps make them do")
        if case.found("lr_schedule"):
            yield opposes(FAIR, "the rate did harm only where the schedule changed it")
        if case.found("bad_batch"):
            yield opposes(FAIR, "a batch stood out at the time")

    def _updates(self, case: Case) -> Iterator[Evidence]:
        rewritten, update = case.most("lr_too_high", "rewritten"), case.most("lr_too_high", "update_ratio")
        if rewritten:
            yield supports(STRONG, f"one step changed the typical weight matrix by {100 * rewritten:.3g} % of itself")
        elif update is not None and update > HEALTHY_UPDATE:
            yield supports(STRONG, f"weight matrices move by {100 * update:.2g} % of themselves in a step")
        elif case.is_quiet("lr_too_high") and case.update_ratio is not None and case.update_ratio > DEAD_UPDATE:
            share = f"weight matrices move by {100 * case.update_ratio:.2g} % of themselves in a step"
            if case.update_ratio > HEALTHY_UPDATE:
                yield supports(FAIR, f"{share}: more than the 1 % that is usual")
            else:
                yield opposes(FAIR if case.update_ratio < HEALTHY_UPDATE / 3 else SLIGHT, f"{share}, which is usual")

    def _beginning(self, case: Case) -> Iterator[Evidence]:
        """A loss above that of the untrained model, for a while or for good; gradients that are gone."""
        first, level = case.most("lr_too_high", "first"), case.most("lr_too_high", "level")
        jump, fading = beginnings.jump(case), beginnings.fading(case)
        if case.most("lr_too_high", "is_above") and first is not None and level is not None:
            yield supports(STRONG, f"the loss lay at {level:.4g}, above the {first:.4g} of the untrained model")
        elif jump is not None and not case.found("bad_batch"):
            weight = STRONG if case.most("lr_too_high", "is_thrown") else FAIR
            yield supports(weight, f"the loss jumped to {jump.peak:.4g} soon after the start, from {jump.first:.4g}")
        if fading is not None and (jump is not None or case.found("lr_too_high")):
            text = f"the gradient norm reached {fading.then:.2g} at first and has sunk to {fading.now:.2g}"
            yield supports(FAIR, f"{text}: the model died of its first steps")

    def _break(self, case: Case) -> Iterator[Evidence]:
        if case.is_live and case.onset <= 1 and not case.found("lr_too_high"):
            yield opposes(STRONG, "no step had been taken yet: the first loss is the untrained model's")
        elif case.began_early and len(case.before("loss")) >= 2 and not case.found("lr_too_high"):
            weight = FAIR if case.found("divergence", "non_finite") else SLIGHT
            yield supports(weight, f"it broke at step {case.onset}, as steps that are too large do")
        rates = case.before("lr", len(case.recent))
        if len(rates) >= 20:
            now, peak, lowest = float(rates[-1]), float(rates.max()), float(rates[-400:][:200].min())
            if now >= NEAR_PEAK * peak and 0 < 1.5 * lowest < now:
                yield supports(STRONG, f"the rate had risen from {lowest:.2g} to {now:.2g}, its highest, when it broke")
            elif now <= PAST_PEAK * peak:
                yield opposes(FAIR, f"the rate was down to {now / peak:.2g} of its peak")
        norms = case.before("grad_norm")
        if len(norms) >= 20:
            grown = float(np.median(norms[-5:]) / max(np.median(norms[: len(norms) // 2]), 1e-30))
            if grown > 2:
                yield supports(FAIR, f"the gradient norm had grown by {grown:.2g} times before")
            elif grown < 1.3:
                yield opposes(SLIGHT, "the gradient norm was as usual just before")
        elif (growing := growth.before_break(case)) is not None:
            yield supports(STRONG if case.began_early else FAIR, growing.text)
        num = sum(member.rule == "loss_spike" for member in case.incident.reportable)
        if num >= MANY:
            yield supports(FAIR, f"the loss spiked {num} times: no single batch does that")

    def advise(self, case: Case) -> Advice:
        """A tenth of the rate, with the user's own numbers."""
        return Advice(
            first_fix="divide the learning rate by 10, and warm it up over the first few hundred steps",
            code=lines.rate(case, case.lr, 0.1),
            avoid="do not restart from the last checkpoint unchanged: the same rate breaks it again",
            verify="the loss falls below its value at the onset; weight matrices move by less than 1 % in a step",
        )
