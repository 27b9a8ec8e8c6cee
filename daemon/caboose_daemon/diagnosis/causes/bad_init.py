"""The weights or biases begin where the model cannot learn: far too large, far too small, or off the living range."""

from collections.abc import Iterator

from caboose_daemon.diagnosis import anatomy
from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import Cause
from caboose_daemon.diagnosis.evidence import FAIR, SLIGHT, STRONG, Evidence, opposes, supports
from caboose_daemon.incidents.causal_links import BREAKS, STANDS_STILL
from caboose_daemon.incidents.diagnosis_record import Advice

LARGE = 2.5
"""Standard deviation over He's that nobody means; torch's own defaults lie at 0.4, He at 1."""
SMALL = 0.02
INSIDE = ("saturation", "dead_units", "gradient_vanishing")
FIRST_LOOKS = 200
"""A condition that needs a window of closer looks and began by this step may have been there from the first."""


class BadInit(Cause):
    """Initial weights that block the gradient."""

    id = "bad_init"
    title = "the initial weights are off"
    explains = BREAKS | STANDS_STILL | {*INSIDE, "frozen_parameters", "lr_too_low", "lr_too_high"}

    def weigh(self, case: Case) -> Iterator[Evidence]:
        """The size of the first weights, and whether it was so at the first look."""
        ratio = anatomy.init_ratio(case)
        is_off = False
        if ratio is not None:
            low, high = ratio
            if high > LARGE:
                is_off = True
                yield supports(STRONG, f"initial weights are up to {high:.2g} times as large as He's rule gives")
            elif 0 < low < SMALL:
                is_off = True
                yield supports(FAIR, f"initial weights are as small as {low:.2g} of what He's rule gives")
        inside = [member for rule in INSIDE if (member := case.episode(rule)) is not None]
        if inside and "resume" not in case.incident.regimes:
            first = min(inside, key=lambda member: member.first.onset_step)
            place = first.worst.layers[0] if first.worst.layers else "a layer"
            if first.first.onset_step <= FIRST_LOOKS and first.severity != "critical":
                weight = FAIR if first.rule != "gradient_vanishing" else SLIGHT
                yield supports(weight, f"{place} was so at the first looks, before training could have done it")
            else:
                yield opposes(STRONG, f"{place} became so at step {first.first.onset_step}, in training")
        elif not case.began_early:
            yield opposes(FAIR, f"it began at step {case.onset}, long after the start")
        if ratio is not None and not is_off and not case.found("dead_units"):
            yield opposes(FAIR, f"initial weights are of a usual size, {ratio[0]:.2g} to {ratio[1]:.2g} of He's rule")
        if not inside and not is_off:
            yield opposes(FAIR, "no layer is saturated, dead or without a gradient")

    def advise(self, case: Case) -> Advice:
        """The rule that fits the activations."""
        flat = anatomy.kinds(case) & set(anatomy.FLAT)
        place = next((f.layers[0] for rule in INSIDE if (f := case.finding(rule)) is not None and f.layers), "")
        if flat and not case.found("dead_units"):
            code = (
                'nn.init.xavier_uniform_(layer.weight, gain=nn.init.calculate_gain("tanh")); nn.init.zeros_(layer.bias)'
            )
        else:
            code = 'nn.init.kaiming_normal_(layer.weight, nonlinearity="relu"); nn.init.zeros_(layer.bias)'
        return Advice(
            first_fix=f"initialise {place + ' and its like' if place else 'the layers'} anew, and start over",
            code=code,
            avoid="do not train longer: units without a gradient do not come back",
            verify="at the first closer look fewer than a third of its units are saturated or dead",
        )
