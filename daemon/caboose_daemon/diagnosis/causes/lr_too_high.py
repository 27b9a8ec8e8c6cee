"""The learning rate is too high for the model, or for this phase of its training."""

from collections.abc import Iterator

import numpy as np

from caboose_daemon.diagnosis import curves, model_facts
from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import (
    DECISIVE,
    FAIR,
    SLIGHT,
    STRONG,
    Cause,
    Evidence,
    line_to_scale_lr,
    opposes,
    supports,
)
from caboose_daemon.diagnosis.causes.momentum_too_high import HIGH, momentum
from caboose_daemon.incidents.causal_links import BREAKS, STANDS_STILL
from caboose_daemon.incidents.diagnosis_record import Advice

ADAM_USUAL = 1e-2
"""Learning rate above which the Adam family is unusual."""
HEALTHY_UPDATE = 1e-2
"""Update-to-weight ratio that is healthy."""
LARGE_UPDATE = 3e-2
"""Ratio that hardly any healthy run has after its first steps."""
DEAD_UPDATE = 1e-6
"""Update-to-weight ratio of a dead model, which shows nothing about its earlier steps."""
NEAR_PEAK, PAST_PEAK = 0.8, 0.2
"""Shares of its peak at which a rate is near it, and well below it."""
MANY = 3


class LrTooHigh(Cause):
    """Steps so large that they undo what was learned."""

    id = "lr_too_high"
    title = "learning rate too high"
    is_plain = True
    explains = (
        BREAKS
        | STANDS_STILL
        | {"lr_too_high", "oscillation", "clipping", "dead_units", "saturation", "activation_collapse"}
        | {"gradient_vanishing", "loss_scale_collapse", "config_advice", "frozen_parameters", "metric_divergence"}
    )

    def weigh(self, case: Case) -> Iterator[Evidence]:
        yield from self._updates(case)
        yield from self._start(case)
        wrong = model_facts.wrong_from_the_start(case)
        if wrong is not None:
            yield opposes(STRONG, f"{wrong}: any learning rate is too high for that")
        if case.facts.get("keeps_gradients") is True:
            yield opposes(STRONG, "gradients are never set to zero: they grow without limit at any learning rate")
        high = momentum(case)
        if high is not None and high >= HIGH:
            yield opposes(FAIR, f"momentum {high:g} multiplies any learning rate")
        stretch = model_facts.stretch(case)
        if stretch is not None:
            yield opposes(DECISIVE, f"recurrent weights stretch a state {stretch:.2g}x per step, at any learning rate")
        correlation = case.value("oscillation", "correlation")
        if correlation is not None and (case.came_first("oscillation") or not case.is_step_change):
            amplitude = 100 * (case.value("oscillation", "amplitude") or 0.0)
            how = "from step to step" if correlation < 0 else "in waves"
            yield supports(STRONG, f"loss oscillates {how} by {amplitude:.0f} % of its level: steps overshoot")
        norms = case.value("oscillation", "norm_amplitude")
        if norms is not None and correlation is None:
            yield supports(SLIGHT, f"gradient norm oscillates by {100 * norms:.0f} % of its level")
        lr = case.lr
        if lr is not None and "Adam" in case.optimizer and lr > ADAM_USUAL:
            yield supports(FAIR, f"learning rate {lr:.3g} is unusually high for {case.optimizer}")
        if case.found(*BREAKS):
            yield from self._break(case)
        dead = case.finding("dead_units")
        if dead is not None and dead.severity == "critical" and case.found("lr_too_high"):
            yield supports(FAIR, "units died during training, as steps that are too large cause")
        lost = model_facts.lost_gradient_at(case)
        if lost is not None and model_facts.kinds(case) & set(model_facts.RECTIFIED):
            yield supports(FAIR, f"layers below ReLUs lost their gradient at step {lost:,}, as large steps cause")
        if case.found("lr_schedule"):
            yield opposes(FAIR, "the learning rate did harm only after the schedule changed it")
        if case.found("bad_batch"):
            yield opposes(FAIR, "there was a bad batch at the time")
        parted = curves.ranks_parted(case)
        if parted is not None:
            text = f"the loss of a rank stayed at {parted.low:.3g}: steps that are too large raise it on all"
            yield opposes(STRONG, text)

    def _updates(self, case: Case) -> Iterator[Evidence]:
        rewritten, update = case.most("lr_too_high", "rewritten"), case.most("lr_too_high", "update_ratio")
        gradient = curves.gradient_out_of_calm(case)
        if rewritten and gradient is not None and rewritten / gradient < HEALTHY_UPDATE:
            text = f"one step changed the weights by {100 * rewritten:.3g} %, with {gradient:,.3g}x the usual gradient"
            yield opposes(FAIR, f"{text}: a usual one changes them by {100 * rewritten / gradient:.1g} %")
        elif rewritten:
            yield supports(STRONG, f"one step changed the weights by {100 * rewritten:.3g} %")
        elif update is not None and update > HEALTHY_UPDATE:
            yield supports(STRONG, f"weights change by {100 * update:.2g} % per step")
        elif case.is_quiet("lr_too_high"):
            yield from self._sampled_updates(case)

    def _sampled_updates(self, case: Case) -> Iterator[Evidence]:
        """The update before the onset; the last one where none was sampled by then, which harm may have changed."""
        before, last = case.update_before, case.update_ratio
        ratio = last if before is None else before.value
        if ratio is None or ratio <= DEAD_UPDATE:
            return
        share = f"weights change by {100 * ratio:.2g} % per step"
        if before is not None:
            share = f"weights changed by {100 * ratio:.2g} % at step {before.step:,}"
        if ratio > HEALTHY_UPDATE:
            weight = STRONG if ratio > LARGE_UPDATE else FAIR
            yield supports(weight, f"{share}, above the usual 1 %")
        else:
            yield opposes(FAIR if ratio < HEALTHY_UPDATE / 3 else SLIGHT, f"{share}, which is usual")

    def _start(self, case: Case) -> Iterator[Evidence]:
        """A loss above the untrained model's, for a while or for good; gradients that have vanished."""
        first, level = case.most("lr_too_high", "first"), case.most("lr_too_high", "level")
        jump, fading = curves.early_jump(case), curves.faded_gradient(case)
        came_first = case.came_first("lr_too_high", 0)  # what broke a run that had learned is not its start
        if case.most("lr_too_high", "is_above") and first is not None and level is not None and came_first:
            yield supports(STRONG, f"loss {level:.4g} was above the untrained model's {first:.4g}")
        elif jump is not None and not case.found("bad_batch"):
            weight = STRONG if case.most("lr_too_high", "is_thrown") else FAIR
            yield supports(weight, f"loss jumped from {jump.first:.4g} to {jump.peak:.4g} soon after the start")
        if fading is not None and (jump is not None or case.found("lr_too_high")):
            text = f"gradient norm fell from {fading.then:.2g} to {fading.now:.2g}"
            yield supports(FAIR, f"{text}: the first steps killed the model")

    def _break(self, case: Case) -> Iterator[Evidence]:
        if case.is_live and case.onset <= 1 and not case.found("lr_too_high"):
            yield opposes(STRONG, "no step was taken yet: the first loss is the untrained model's")
        elif case.began_early and len(case.before("loss")) >= 2 and not case.found("lr_too_high"):
            weight = FAIR if case.found("divergence", "non_finite") else SLIGHT
            yield supports(weight, f"broke at step {case.onset:,}, as with steps that are too large")
        rates = case.before("lr", len(case.recent))
        if len(rates) >= 20:
            now, peak, lowest = float(rates[-1]), float(rates.max()), float(rates[-400:][:200].min())
            if now >= NEAR_PEAK * peak and 0 < 1.5 * lowest < now:
                yield supports(STRONG, f"learning rate had just risen from {lowest:.2g} to its peak {now:.2g}")
            elif now <= PAST_PEAK * peak:
                yield opposes(FAIR, f"learning rate was down to {100 * now / peak:.2g} % of its peak")
        norms = case.before("grad_norm")
        if len(norms) >= 20:
            grown = float(np.median(norms[-5:]) / max(np.median(norms[: len(norms) // 2]), 1e-30))
            if grown > 2:
                yield supports(FAIR, f"gradient norm grew {grown:.2g}x before")
            elif grown < 1.3:
                yield opposes(SLIGHT, "gradient norm was usual just before")
        elif (growing := curves.growth_before_nan(case)) is not None:
            yield supports(STRONG if case.began_early else FAIR, growing.text)
        if case.value("non_finite", "loss_is_infinite") and curves.growth_before_nan(case) is None:
            yield opposes(FAIR, "the loss was infinite from one step to the next, and had not grown before")
        num = sum(member.rule == "loss_spike" for member in case.incident.reportable)
        if num >= MANY:
            yield supports(FAIR, f"loss spiked {num} times: more than one batch")

    def advise(self, case: Case) -> Advice:
        return Advice(
            first_fix="divide the learning rate by 10 and warm it up over the first few hundred steps",
            code=line_to_scale_lr(case, case.lr, 0.1),
            avoid="do not resume from the last checkpoint without a change: the same rate breaks it again",
            verify="the loss falls below its value at the onset, and weights change by less than 1 % per step",
        )
