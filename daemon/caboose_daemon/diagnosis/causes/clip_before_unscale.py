"""Gradients are clipped while they are still multiplied by the GradScaler's scale."""

from collections.abc import Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import DECISIVE, STRONG, Cause, Evidence, opposes, supports
from caboose_daemon.incidents.causal_links import STANDS_STILL
from caboose_daemon.incidents.diagnosis_record import Advice


class ClipBeforeUnscale(Cause):
    """A clipper that is called before the scale is removed."""

    id = "clip_before_unscale"
    title = "gradients clipped before unscale_"
    is_plain = True
    explains = STANDS_STILL | {"clipping", "lr_too_low"}

    def weigh(self, case: Case) -> Iterator[Evidence]:
        scale = case.value("clipping", "scaled")
        if scale is None:
            yield opposes(STRONG, "no clipping of scaled gradients seen")
            return
        yield supports(DECISIVE, f"gradients were clipped while multiplied by the scale {scale:,.0f}")

    def advise(self, case: Case) -> Advice:
        return Advice(
            first_fix="remove the scale before clipping",
            code="scaler.unscale_(optimizer)  # before torch.nn.utils.clip_grad_norm_",
            avoid="do not raise the clipping limit instead: the scale changes during the run",
            verify="the clip ratio is 1 on most steps, and the loss falls faster",
        )
