"""Parameters that should learn get no gradient: detached, under no_grad, unused, or too small to move."""

from collections.abc import Iterator

from caboose_daemon.diagnosis import anatomy
from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import Cause
from caboose_daemon.diagnosis.evidence import FAIR, STRONG, Evidence, opposes, supports
from caboose_daemon.incidents.causal_links import STANDS_STILL
from caboose_daemon.incidents.diagnosis_record import Advice
from caboose_daemon.rules.parts.lasting_rule import named


class ParametersFrozen(Cause):
    """A part of the model is cut off from the loss."""

    id = "parameters_frozen"
    title = "a part of the model is cut off from the loss"
    explains = STANDS_STILL | {"frozen_parameters", "lr_too_low", "gradient_vanishing"}

    def weigh(self, case: Case) -> Iterator[Evidence]:
        """Which layers have no gradient, and whether something else takes it from them."""
        finding = case.finding("frozen_parameters")
        if finding is None:
            is_seen = case.is_quiet("frozen_parameters") and bool(case.layers)
            yield opposes(STRONG, "every layer has a gradient and moves" if is_seen else "no frozen layer was seen")
            return
        without, still = finding.values.get("without_gradient", 0), finding.values.get("never_moves", 0)
        layers = list(finding.layers[int(finding.values.get("not_held", 0)) :])
        if without:
            text = f"{without:.0f} of {len(case.layers)} layers never have a gradient: {named(layers)}"
            yield supports(STRONG, text)
        elif still:
            yield supports(FAIR, f"{still:.0f} layers have a gradient and do not move: {named(layers)}")
        else:
            yield opposes(STRONG, "the layers in question have a gradient; they are not with an optimizer")
        taken = [rule for rule in ("dead_units", "saturation", "loss_scale_collapse", "non_finite") if case.found(rule)]
        if taken:
            yield opposes(FAIR, f"{', '.join(taken)} alone would leave layers without a gradient")
        elif without and anatomy.shows_dead_units(case):
            yield supports(FAIR, "no layer is dead: something cuts the graph")
        lost = anatomy.loses_gradient_at(case)
        if lost is not None:
            yield opposes(STRONG, f"they had a gradient until step {lost}: what code cuts off has none from the start")

    def advise(self, case: Case) -> Advice:
        """Find the cut behind the last layer that has none."""
        finding = case.finding("frozen_parameters")
        place = finding.layers[-1] if finding is not None and finding.layers else "the layer"
        return Advice(
            first_fix=f"look for .detach(), torch.no_grad(), .data or .item() between {place} and the loss",
            code=f"assert model.get_parameter({place!r}).grad is not None  # after loss.backward()",
            avoid="do not raise the learning rate: there is no gradient for it to multiply",
            verify="every layer that should learn has a gradient at the next step; if it was meant to be frozen,"
            " set requires_grad=False and this is not told again",
        )
