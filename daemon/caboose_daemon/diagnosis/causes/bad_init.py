"""The initial weights or biases are far too large, far too small, or block the gradient."""

from collections.abc import Iterator

from caboose_daemon.diagnosis import curves, model_facts
from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import FAIR, SLIGHT, STRONG, Cause, Evidence, opposes, supports
from caboose_daemon.diagnosis.causes.parameters_frozen import zero_gradients
from caboose_daemon.incidents.causal_links import BREAKS, STANDS_STILL
from caboose_daemon.incidents.diagnosis_record import Advice

LARGE = 2.5
"""Standard deviation relative to He initialisation that is never intended; torch's defaults have 0.4, He 1."""
SMALL = 0.02
INSIDE = ("saturation", "dead_units", "gradient_vanishing")
FIRST_SAMPLES = 200
"""A condition that needs a window of samples, and is reported by this step, may have been there from the start."""


class BadInit(Cause):
    """Initial weights that block the gradient."""

    id = "bad_init"
    title = "bad weight initialisation"
    is_plain = True
    explains = BREAKS | STANDS_STILL | {*INSIDE, "frozen_parameters", "lr_too_low", "lr_too_high", "config_advice"}

    def weigh(self, case: Case) -> Iterator[Evidence]:
        ratio, stretch = model_facts.init_ratio(case), model_facts.stretch(case)
        is_off = False
        if stretch is not None:
            is_off = True
            yield supports(
                STRONG, f"initial recurrent weights stretch a state {stretch:.2g}x at each step of a sequence"
            )
        if ratio is not None:
            low, high = ratio
            if high > LARGE:
                is_off = True
                yield supports(STRONG, f"initial weights up to {high:.2g}x those of He initialisation")
            elif high < SMALL:
                is_off = True
                yield supports(STRONG, f"initial weights of all layers at most {high:.2g}x those of He initialisation")
            elif 0 < low < SMALL:
                is_off = True
                yield supports(FAIR, f"initial weights as small as {low:.2g}x those of He initialisation")
        excess = curves.first_excess(case)
        if is_off and excess is not None and excess > curves.FAR_OFF:
            yield supports(STRONG, f"the first loss, before any step, was {excess:.3g}x that of a guess")
        if is_off and zero_gradients(case):
            yield supports(STRONG, "layers have gradients of exactly zero from the start")
        inside = [member for rule in INSIDE if (member := case.episode(rule)) is not None]
        if inside and "resume" not in case.incident.regimes:
            first = min(inside, key=lambda member: member.first.onset_step)
            place = first.worst.layers[0] if first.worst.layers else "a layer"
            if first.first.onset_step <= FIRST_SAMPLES and first.severity != "critical":
                weight = FAIR if first.rule != "gradient_vanishing" else SLIGHT
                yield supports(weight, f"{first.rule} in {place} at the first samples, before training could cause it")
            else:
                yield opposes(STRONG, f"{first.rule} in {place} began at step {first.first.onset_step:,}, in training")
        elif not case.began_early and not is_off:
            yield opposes(FAIR, f"began at step {case.onset:,}, long after the start")
        if ratio is not None and not is_off and not case.found("dead_units"):
            yield opposes(FAIR, f"usual initial weights, {ratio[0]:.2g} to {ratio[1]:.2g}x He initialisation")
        if not inside and not is_off:
            yield opposes(FAIR, "no layer is saturated, dead or without gradient")

    def advise(self, case: Case) -> Advice:
        flat = model_facts.kinds(case) & set(model_facts.SATURATING)
        place = next((f.layers[0] for rule in INSIDE if (f := case.finding(rule)) is not None and f.layers), "")
        if flat and not case.found("dead_units"):
            code = (
                'nn.init.xavier_uniform_(layer.weight, gain=nn.init.calculate_gain("tanh")); nn.init.zeros_(layer.bias)'
            )
        else:
            code = 'nn.init.kaiming_normal_(layer.weight, nonlinearity="relu"); nn.init.zeros_(layer.bias)'
        return Advice(
            first_fix=f"initialise {place + ' and similar layers' if place else 'the layers'} again and restart",
            code=code,
            avoid="do not train longer: units without gradient do not recover",
            verify="at the first sampled step fewer than a third of its units are saturated or dead",
        )
