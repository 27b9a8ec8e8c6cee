"""The model is trained in eval mode: an evaluation did not switch it back, or train() was never called."""

from collections.abc import Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import FAIR, STRONG, Cause, Evidence, opposes, supports
from caboose_daemon.incidents.causal_links import STANDS_STILL
from caboose_daemon.incidents.diagnosis_record import Advice


class EvalModeLeftOn(Cause):
    """Batch norms and dropouts that do not train."""

    id = "eval_mode_left_on"
    title = "training in eval mode"
    is_plain = True
    explains = STANDS_STILL | {"eval_mode", "overfitting", "metric_divergence"}

    def weigh(self, case: Case) -> Iterator[Evidence]:
        member = case.episode("eval_mode")
        if member is None:
            is_seen = case.is_quiet("eval_mode") and case.sees("modes")
            yield opposes(STRONG, "all training steps ran in train mode" if is_seen else "no step in eval mode seen")
            return
        if case.value("eval_mode", "in_train_mode"):
            yield opposes(STRONG, "it is the evaluations whose mode is wrong")
            return
        onset = member.first.onset_step
        yield supports(STRONG, member.worst.summary)
        near = [event.step for event in case.events if event.kind == "validation" and abs(onset - event.step) <= 2]
        if near:
            yield supports(FAIR, f"began at step {onset:,}, just after the evaluation at step {near[0]:,}")
        elif onset <= 1:
            yield supports(FAIR, "since the first step: model.train() was never called")
        if any(not layer.trainable for layer in case.layers):
            yield opposes(FAIR, "a part of the model is frozen and may be in eval mode on purpose")

    def advise(self, case: Case) -> Advice:
        return Advice(
            first_fix="call model.train() at the end of the evaluation, or at the start of every epoch",
            code="model.train()  # after the evaluation. Norms frozen on purpose: config={'frozen_norms': True}",
            avoid="do not change regularisation or learning rate before the mode is right",
            verify="eval_mode is resolved within a few steps",
        )
