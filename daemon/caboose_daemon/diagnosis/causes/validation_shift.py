"""Validation data differs from training data: other preprocessing, another source, or a change during the run."""

from collections.abc import Iterator

import numpy as np

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import FAIR, STRONG, Cause, Evidence, opposes, supports
from caboose_daemon.diagnosis.causes.memorising import FEW_EPOCHS, MANY_EPOCHS
from caboose_daemon.incidents.diagnosis_record import Advice

APART = 1.25
"""Validation over training loss, above which the two differ."""
TOGETHER = 1.1
LEARNED = 0.8
"""Share of its first value below which the training loss must be before the two are compared."""


class ValidationShift(Cause):
    """Validation and training data from different distributions."""

    id = "validation_shift"
    title = "validation data unlike the training data"
    explains = frozenset({"overfitting", "metric_divergence"})
    rarity = 0.5

    def weigh(self, case: Case) -> Iterator[Evidence]:
        epochs = case.epochs_seen
        if epochs is not None and epochs < FEW_EPOCHS:
            yield supports(STRONG, f"the losses differ after {epochs:.2g} epochs, too few to memorise")
        elif epochs is not None and epochs > MANY_EPOCHS:
            yield opposes(FAIR, f"{epochs:,.0f} epochs so far: the data may be memorised")
        if any(case.value("metric_divergence", kind) for kind in ("equal", "chance")):
            yield opposes(STRONG, "the evaluation itself is doubtful")
        else:
            yield from self._while_new(case)

    def _while_new(self, case: Case) -> Iterator[Evidence]:
        """The two losses at the last evaluation at which training samples could not be memorised yet."""
        all_found = [(step, found.loss, case.train_at(step), case.epochs_at(step)) for step, found in case.validations]
        new = [
            (step, loss, train)
            for step, loss, train, epochs in all_found
            if epochs is not None and epochs < FEW_EPOCHS and train
        ]
        if not new:
            return
        step, loss, train = new[-1]
        losses = case.curve("loss")
        start = float(losses[np.isfinite(losses)][0])
        if train is None or train > LEARNED * start:
            return  # the model has learned too little yet
        text = f"validation loss {loss:.3g}, training loss {train:.3g} at step {step:,}, before samples were memorised"
        if loss > APART * train:
            yield supports(STRONG, text)
        elif loss < TOGETHER * train:
            yield opposes(STRONG, text)

    def advise(self, case: Case) -> Advice:
        return Advice(
            first_fix="evaluate a few hundred training samples with the validation code",
            code="validate(model, Subset(train_set, range(500)))  # must give about the training loss",
            avoid="do not regularise or shrink the model before the two losses agree on the same samples",
            verify="the same samples have the same loss in training and validation code; then compare preprocessing",
        )
