"""Evaluations run in train mode: batch norms learn from validation data, and dropout makes the results worse."""

from collections.abc import Iterator

from caboose_daemon.diagnosis import model_facts
from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import DECISIVE, FAIR, Cause, Evidence, supports
from caboose_daemon.incidents.diagnosis_record import Advice


class ValidationInTrainMode(Cause):
    """An evaluation without `model.eval()`."""

    id = "validation_in_train_mode"
    title = "validation in train mode"
    is_plain = True
    explains = frozenset({"eval_mode", "overfitting", "generalisation_gap", "metric_divergence"})
    rarity = 1.0

    def weigh(self, case: Case) -> Iterator[Evidence]:
        num = case.value("eval_mode", "in_train_mode")
        if num is None:
            return
        yield supports(DECISIVE, f"forwards without gradients ran in train mode in the last {num:.0f} evaluations")
        if model_facts.has_batch_norms(case):
            yield supports(FAIR, "the model has batch norms: their running statistics now include validation data")
        elif case.dropout:
            yield supports(FAIR, f"dropout of {case.dropout:g} is on while it is evaluated")

    def advise(self, case: Case) -> Advice:
        return Advice(
            first_fix="switch to eval mode before the evaluation, and back after it",
            code="model.eval(); val_loss = torch.no_grad()(validate)(model); model.train()",
            avoid="do not compare this run's validation with another one's before that: it has other statistics",
            verify="two evaluations of the same weights give the same number, and eval_mode is resolved",
        )
