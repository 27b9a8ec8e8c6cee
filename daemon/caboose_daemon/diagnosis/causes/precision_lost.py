"""Weights in bfloat16 or float16 take updates that are smaller than half of their last digit: nothing changes."""

from collections.abc import Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import DECISIVE, FAIR, SLIGHT, STRONG, Cause, Evidence, opposes, supports
from caboose_daemon.incidents.causal_links import STANDS_STILL
from caboose_daemon.incidents.diagnosis_record import Advice

HALF_DIGIT = {"bfloat16": 2.0**-9, "float16": 2.0**-12}
"""The smallest change, as a share of a weight, that is not rounded away (it is up to twice that, by the weight)."""


class PrecisionLost(Cause):
    """Updates that rounding removes."""

    id = "precision_lost"
    title = "updates lost to rounding"
    is_plain = True
    explains = STANDS_STILL | {"lr_too_low", "frozen_parameters", "config_advice", "metric_divergence"}

    def weigh(self, case: Case) -> Iterator[Evidence]:
        precision = case.fact("precision")
        half = HALF_DIGIT.get(precision)
        if half is None:
            if precision:
                yield opposes(DECISIVE, f"weights are {precision}")
            return
        if case.found("frozen_parameters") and case.value("frozen_parameters", "without_gradient"):
            yield opposes(FAIR, "layers have no gradient, whatever the precision")
        found = case.value("lr_too_low", "update_ratio")
        update = found if found is not None else case.typical_update
        if update is None:
            yield supports(SLIGHT, f"weights are {precision}")
        elif update < half:
            yield supports(
                STRONG,
                f"weights are {precision}, which rounds away changes below {100 * half:.2g} % of a weight; a step "
                f"changes {100 * update:.1g} %",
            )
            if case.found("lr_too_low", "frozen_parameters") or case.found(*STANDS_STILL):
                yield supports(STRONG, "most updates are therefore lost, at any number of steps")
        else:
            yield opposes(FAIR, f"weights change by {100 * update:.2g} % per step, which {precision} holds")

    def advise(self, case: Case) -> Advice:
        return Advice(
            first_fix="keep the weights in float32 and compute in bfloat16 with autocast",
            code="model.float()  # not model.bfloat16(): the forward under torch.autocast(device, torch.bfloat16)",
            avoid="do not only raise the learning rate: small updates stay lost, and late in a schedule all are small",
            verify="the update-to-weight ratio rises, and the loss falls again at the same learning rate",
        )
