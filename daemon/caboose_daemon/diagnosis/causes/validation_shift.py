"""Validation data is unlike the training data: prepared in another way, drawn from elsewhere, or changed on the way."""

from collections.abc import Iterator

import numpy as np

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import Cause
from caboose_daemon.diagnosis.causes.memorising import FEW_EPOCHS, MANY_EPOCHS
from caboose_daemon.diagnosis.evidence import FAIR, STRONG, Evidence, opposes, supports
from caboose_daemon.incidents.diagnosis_record import Advice

APART = 1.25
"""Validation over training loss, from which on the two were apart."""
TOGETHER = 1.1
LEARNED = 0.8
"""Share of its first loss that training must have come below before the two are compared."""


class ValidationShift(Cause):
    """The two losses are not about the same data."""

    id = "validation_shift"
    title = "validation data is unlike the training data"
    explains = frozenset({"overfitting", "metric_divergence"})
    rarity = 0.5

    def weigh(self, case: Case) -> Iterator[Evidence]:
        """Whether the two were apart before anything could be known by heart."""
        epochs = case.epochs_seen
        if epochs is not None and epochs < FEW_EPOCHS:
            yield supports(STRONG, f"the data has been seen {epochs:.2g} times only, and validation parts already")
        elif epochs is not None and epochs > MANY_EPOCHS:
            yield opposes(FAIR, f"the data has been seen {epochs:.0f} times: it can have been learned by heart")
        if any(case.value("metric_divergence", kind) for kind in ("equal", "chance")):
            yield opposes(STRONG, "the evaluation itself is in doubt")
        else:
            yield from self._while_new(case)

    def _while_new(self, case: Case) -> Iterator[Evidence]:
        """What the last evaluation says at which the training samples were as new as those held out."""
        told = [(step, found.loss, case.train_at(step), case.epochs_at(step)) for step, found in case.validations]
        new = [
            (s, loss, train) for s, loss, train, epochs in told if epochs is not None and epochs < FEW_EPOCHS and train
        ]
        if not new:
            return
        step, loss, train = new[-1]
        losses = case.curve("loss")
        start = float(losses[np.isfinite(losses)][0])
        if train is None or train > LEARNED * start:
            return  # neither knows anything yet
        said = f"at step {step}, with the samples still new, validation stood at {loss:.3g} and training at {train:.3g}"
        if loss > APART * train:
            yield supports(STRONG, said)
        elif loss < TOGETHER * train:
            yield opposes(STRONG, said)

    def advise(self, case: Case) -> Advice:
        """Run the evaluation on training samples: the one test that tells the two apart."""
        return Advice(
            first_fix="evaluate a few hundred training samples through the validation's own code",
            code="validate(model, Subset(train_set, range(500)))  # must give about the training loss",
            avoid="do not regularise or shrink the model before the two losses agree on the same samples",
            verify="the same samples give the same loss on both ways; then compare how each set is read and normalised",
        )
