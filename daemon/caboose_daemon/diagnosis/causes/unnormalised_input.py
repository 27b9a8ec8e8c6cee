"""Inputs that were not brought to the scale the model is used to."""

from collections.abc import Iterator

from caboose_daemon.diagnosis import anatomy
from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import Cause
from caboose_daemon.diagnosis.evidence import DECISIVE, FAIR, SLIGHT, STRONG, Evidence, opposes, supports
from caboose_daemon.incidents.causal_links import BREAKS, STANDS_STILL
from caboose_daemon.incidents.diagnosis_record import Advice

LARGE = 50.0
"""Inputs that reach this far are not normalised, whatever they are."""


class UnnormalisedInput(Cause):
    """Raw values where scaled ones are expected: of one file, or of the whole run."""

    id = "unnormalised_input"
    title = "inputs are not normalised"
    explains = (
        BREAKS
        | STANDS_STILL
        | {"bad_batch", "rank_outlier", "activation_collapse", "saturation", "dead_units", "loss_scale_collapse"}
        | {"lr_too_high", "oscillation"}
    )

    rarity = 1.0

    def weigh(self, case: Case) -> Iterator[Evidence]:
        """The range of the batch against that of others, or the range of all inputs."""
        width, usual = case.value("bad_batch", "width"), case.value("bad_batch", "usual_width")
        if width is not None and usual:
            yield supports(DECISIVE, f"its batch spans {width:.3g}, {width / usual:.3g} times what other batches span")
            finding = case.finding("bad_batch")
            if finding is not None and finding.step - finding.onset_step >= 2:
                num = finding.step - finding.onset_step + 1
                yield supports(SLIGHT, f"and so did others, over {num} steps: a whole file, not one sample")
        elif case.found("bad_batch"):
            yield opposes(FAIR, "the batch that went wrong is not out of range")
        finding = case.finding("non_finite")
        if finding is not None and finding.phase == "input":
            yield opposes(STRONG, "elements of the batch are not finite: that is another fault")
        extent = anatomy.input_range(case)
        if extent is None or width is not None or any("embedding" in kind for kind in anatomy.kinds(case)):
            return
        if max(-extent[0], extent[1]) > LARGE:
            yield supports(FAIR, f"inputs reach from {extent[0]:.3g} to {extent[1]:.3g}")
        else:
            yield opposes(STRONG, f"inputs lie between {extent[0]:.3g} and {extent[1]:.3g}")

    def advise(self, case: Case) -> Advice:
        """The same scaling for every file."""
        batch = case.value("bad_batch", "last_batch")
        which = f"batch {batch:g}" if batch is not None else "the inputs"
        return Advice(
            first_fix=f"look at {which}, and bring every file to the same scale where it is read",
            code="inputs = (inputs.float() / 255 - mean) / std  # in the data set, for every source",
            avoid="do not only clip gradients: the model would still learn from wrong values",
            verify="lowest and highest element of every batch lie within twice the range of the others",
        )
