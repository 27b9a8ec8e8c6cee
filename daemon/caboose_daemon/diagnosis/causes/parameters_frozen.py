"""Parameters that should be trained get no gradient: detached, under no_grad, unused, or with updates too small."""

from collections.abc import Iterator

from caboose_daemon.diagnosis import model_facts
from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import DECISIVE, FAIR, STRONG, Cause, Evidence, opposes, supports
from caboose_daemon.incidents.causal_links import STANDS_STILL
from caboose_daemon.incidents.diagnosis_record import Advice
from caboose_daemon.rules.parts.lasting_rule import named

THE_LAYER = "the layer"
"""Where none is known by name."""
MUCH = 0.05
"""Share of the parameters that matters."""


def zero_gradients(case: Case) -> bool:
    """Whether most layers without gradient have one that is exactly zero, as units that are dead or equal give."""
    zero, without = (case.value("frozen_parameters", name) or 0.0 for name in ("zero_gradient", "without_gradient"))
    return case.world == 1 and zero > 0.5 * without


class ParametersFrozen(Cause):
    """Trainable layers that are cut off from the loss."""

    id = "parameters_frozen"
    title = "layers cut off from the loss"
    is_plain = True
    explains = STANDS_STILL | {
        "frozen_parameters",
        "lr_too_low",
        "gradient_vanishing",
        "config_advice",
        "metric_divergence",
    }

    def weigh(self, case: Case) -> Iterator[Evidence]:
        if case.facts.get("never_steps") is True:
            yield supports(DECISIVE, "no optimizer has taken a step: nothing is trained")
            return
        finding = case.finding("frozen_parameters")
        frozen, total = case.setting("frozen_at_random"), case.setting("num_parameters")
        if frozen and total:
            share = f"{100 * frozen / total:.2g} % of the parameters are frozen at their random initial values"
            yield supports(DECISIVE if frozen > MUCH * total else FAIR, share)
            return
        if finding is None:
            is_seen = case.is_quiet("frozen_parameters") and bool(case.layers)
            yield opposes(STRONG, "every layer gets gradients and updates" if is_seen else "no frozen layer seen")
            return
        without, still = finding.values.get("without_gradient", 0), finding.values.get("never_moves", 0)
        layers = list(finding.layers[int(finding.values.get("not_held", 0)) :])
        if without:
            text = f"{without:.0f} of {len(case.layers)} layers without gradient: {named(layers)}"
            yield supports(STRONG, text)
        elif still:
            yield supports(FAIR, f"{still:.0f} layers with gradient but never updated: {named(layers)}")
        else:
            yield opposes(STRONG, "these layers have a gradient, but are in no optimizer")
        if zero_gradients(case):
            yield opposes(STRONG, "these layers have a gradient, of exactly zero: something in the model stops it")
        taken = [rule for rule in ("dead_units", "saturation", "loss_scale_collapse", "non_finite") if case.found(rule)]
        if taken:
            yield opposes(FAIR, f"{', '.join(taken)} alone leaves layers without gradient")
        elif without and model_facts.would_show_dead_units(case):
            yield supports(FAIR, "no layer has dead units: something cuts the graph")
        lost = model_facts.lost_gradient_at(case)
        if lost is not None:
            yield opposes(STRONG, f"they had gradients until step {lost:,}: a cut graph has none from the start")

    def advise(self, case: Case) -> Advice:
        if case.facts.get("never_steps") is True:
            return Advice(
                first_fix="call optimizer.step() after loss.backward(), of the optimizer that holds these parameters",
                code="loss.backward(); optimizer.step(); optimizer.zero_grad()",
                avoid="do not change model or learning rate: no update was ever made",
                verify="the weights change by about 0.1 % per step",
            )
        finding = case.finding("frozen_parameters")
        place = finding.layers[-1] if finding is not None and finding.layers else THE_LAYER
        code = (
            f"assert model.get_parameter({place!r}).grad is not None"
            if place != THE_LAYER
            else "assert all(p.grad is not None for p in model.parameters() if p.requires_grad)"
        )
        return Advice(
            first_fix=f"search for .detach(), torch.no_grad(), .data or .item() between {place} and the loss",
            code=f"{code}  # after loss.backward()",
            avoid="do not raise the learning rate: there is no gradient to multiply",
            verify="every trainable layer has a gradient at the next step; for layers frozen on purpose,"
            " set requires_grad=False and they are not reported again",
        )
