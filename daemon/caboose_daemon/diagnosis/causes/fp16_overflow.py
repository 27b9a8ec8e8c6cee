"""Numbers exceed the range of half precision: the largest float16 is 65504."""

from collections.abc import Iterator

from caboose_daemon.diagnosis import model_facts
from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import DECISIVE, FAIR, SLIGHT, STRONG, Cause, Evidence, opposes, supports
from caboose_daemon.incidents.causal_links import STANDS_STILL
from caboose_daemon.incidents.diagnosis_record import Advice

NEAR = 0.01
"""Share of float16's range above which squares and sums overflow."""


class Fp16Overflow(Cause):
    """Activations or gradients beyond the range of float16."""

    id = "fp16_overflow"
    title = "float16 overflow"
    is_plain = True
    explains = STANDS_STILL | {"loss_scale_collapse", "non_finite", "config_advice", "frozen_parameters", "lr_too_low"}

    def weigh(self, case: Case) -> Iterator[Evidence]:
        hunt = next((h for h in case.hunts if h.is_run and h.dtype == "float16" and not h.is_undefined), None)
        if hunt is not None:
            yield supports(DECISIVE, f"NaN hunt: {hunt.summary}")
        elif not model_facts.is_half(case):
            precision = case.fact("precision")
            if precision:
                yield opposes(STRONG, f"weights are {precision}, and there is no gradient scaler")
            else:
                yield opposes(FAIR, "no sign of float16")
            return
        elif case.hunts:
            yield opposes(FAIR, f"NaN hunt found no float16 overflow: {case.hunts[0].summary}")
        scale = case.value("loss_scale_collapse", "scale")
        if scale is not None:
            yield supports(STRONG, f"loss scale fell to {scale:,g}: gradients overflow at any scale")
            skipped = case.value("loss_scale_collapse", "skipped_steps")
            if skipped and skipped >= 10:
                yield supports(SLIGHT, f"{skipped:,g} steps skipped")
        finding = case.finding("non_finite")
        largest = None if finding is None else case.value("non_finite", "largest_activation")
        if largest is None:
            largest = case.value("loss_scale_collapse", "largest_activation")
        if largest is not None and largest > NEAR * model_facts.HALF_MAX:
            yield supports(FAIR, f"activations reached {largest:.3g}, float16 ends at 65504")
        if finding is not None and finding.values.get("loss_is_infinite") and model_facts.is_half(case):
            yield supports(STRONG, "the first bad loss was infinite, as numbers above 65504 are in float16")
        if finding is not None and finding.phase == "input":
            yield opposes(STRONG, "the inputs were already not finite")
        elif finding is not None and scale is None:
            yield supports(SLIGHT, "float16 is in use")
        if scale is None and case.is_quiet("loss_scale_collapse"):
            yield opposes(FAIR, "loss scale is stable")

    def advise(self, case: Case) -> Advice:
        return Advice(
            first_fix="train in bfloat16, or compute norms, sums of squares and the loss in float32",
            code="with torch.autocast(device, torch.bfloat16): logits = model(inputs)  # or x.float() before sums",
            avoid="do not restart with a larger initial scale: it falls again",
            verify="the loss scale stays above 1000, and at most one step in a thousand is skipped",
        )
