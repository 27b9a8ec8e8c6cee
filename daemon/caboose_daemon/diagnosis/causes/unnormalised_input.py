"""Inputs are not scaled to the range that the model expects."""

from collections.abc import Iterator

from caboose_daemon.diagnosis import curves, model_facts
from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import DECISIVE, FAIR, SLIGHT, STRONG, Cause, Evidence, opposes, supports
from caboose_daemon.incidents.causal_links import BREAKS, STANDS_STILL
from caboose_daemon.incidents.diagnosis_record import Advice
from caboose_daemon.rules.parts.risky_model import NORMS, VERY_LARGE

LARGE = 50.0
"""Absolute value above which inputs are not normalised."""


class UnnormalisedInput(Cause):
    """Raw values where scaled ones are expected, in one file or in the whole run."""

    id = "unnormalised_input"
    title = "inputs not normalised"
    is_plain = True
    explains = (
        BREAKS
        | STANDS_STILL
        | {"bad_batch", "rank_outlier", "activation_collapse", "saturation", "dead_units", "loss_scale_collapse"}
        | {"lr_too_high", "oscillation", "clipping", "config_advice"}
    )

    rarity = 0.5

    def weigh(self, case: Case) -> Iterator[Evidence]:
        width, usual = case.value("bad_batch", "width"), case.value("bad_batch", "usual_width")
        if width is not None and usual:
            yield supports(DECISIVE, f"range of the batch is {width:.3g}, {width / usual:.3g}x that of other batches")
            finding = case.finding("bad_batch")
            if finding is not None and finding.step - finding.onset_step >= 2:
                num = finding.step - finding.onset_step + 1
                yield supports(SLIGHT, f"lasts over {num} steps: a whole file, not one sample")
        elif case.found("bad_batch"):
            yield opposes(FAIR, "the bad batch is not out of range")
        finding = case.finding("non_finite")
        if finding is not None and finding.phase == "input":
            yield opposes(STRONG, "elements of the batch are not finite, which is another fault")
        extent = model_facts.input_range(case)
        if extent is None or width is not None or any("embedding" in kind for kind in model_facts.kinds(case)):
            return
        largest = max(-extent[0], extent[1])
        if largest > LARGE:
            weight = STRONG if largest > VERY_LARGE else FAIR
            yield supports(weight, f"inputs range from {extent[0]:.3g} to {extent[1]:.3g}")
            excess = curves.first_excess(case)
            if excess is not None and excess > curves.FAR_OFF:
                yield supports(STRONG, f"the first loss, before any step, was {excess:.3g}x that of a guess")
            if not any(layer.kind.startswith(NORMS) for layer in case.layers[:2]):
                weight = FAIR if largest > VERY_LARGE else SLIGHT
                yield supports(weight, "no norm comes before the first weights")
        else:
            yield opposes(STRONG, f"inputs range from {extent[0]:.3g} to {extent[1]:.3g}")

    def advise(self, case: Case) -> Advice:
        batch = case.value("bad_batch", "last_batch")
        which = f"batch {batch:g}" if batch is not None else "the inputs"
        return Advice(
            first_fix=f"inspect {which} and normalise every file in the same way where it is read",
            code="inputs = (inputs.float() / 255 - mean) / std  # in the dataset, for every source",
            avoid="do not only clip gradients: the model would still learn from wrong values",
            verify="the range of every batch is within twice that of the others",
        )
