"""The model is trained in eval mode: an evaluation did not put it back, or train() was never called."""

from collections.abc import Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import Cause
from caboose_daemon.diagnosis.evidence import FAIR, STRONG, Evidence, opposes, supports
from caboose_daemon.incidents.causal_links import STANDS_STILL
from caboose_daemon.incidents.diagnosis_record import Advice


class EvalModeLeftOn(Cause):
    """Batch norms that no longer learn, dropouts that no longer drop."""

    id = "eval_mode_left_on"
    title = "trained in eval mode"
    explains = STANDS_STILL | {"eval_mode", "overfitting", "metric_divergence"}

    def weigh(self, case: Case) -> Iterator[Evidence]:
        """The mode itself, and whether an evaluation came just before."""
        member = case.episode("eval_mode")
        if member is None:
            is_seen = case.is_quiet("eval_mode") and case.sees("modes")
            yield opposes(
                STRONG, "every training step ran in train mode" if is_seen else "no step in eval mode was seen"
            )
            return
        onset = member.first.onset_step
        yield supports(STRONG, member.worst.summary)
        near = [event.step for event in case.events if event.kind == "validation" and abs(onset - event.step) <= 2]
        if near:
            yield supports(FAIR, f"it began at step {onset}, just after the evaluation at step {near[0]}")
        elif onset <= 1:
            yield supports(FAIR, "it has been so since the first step: model.train() was never called")
        if any(not layer.trainable for layer in case.layers):
            yield opposes(FAIR, "a part of the model is frozen: the rest of it may be in eval mode on purpose")

    def advise(self, case: Case) -> Advice:
        """Put the mode back where it was changed."""
        return Advice(
            first_fix="call model.train() at the end of the evaluation, or at the top of every epoch",
            code="model.train()  # right after the evaluation; norms frozen on purpose: attach(..., frozen_norms=True)",
            avoid="do not regularise or change the learning rate before the mode is right",
            verify="the run is told to be in train mode again within a few steps",
        )
