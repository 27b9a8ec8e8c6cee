"""The model learns its training data by heart: too little data, seen too often, for so many parameters."""

from collections.abc import Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import Cause
from caboose_daemon.diagnosis.evidence import FAIR, SLIGHT, STRONG, Evidence, opposes, supports
from caboose_daemon.incidents.diagnosis_record import Advice

FEW_EPOCHS = 2.0
"""Nothing is known by heart that was seen less often."""
MANY_EPOCHS = 10.0
VERY_MANY_EPOCHS = 50.0


class Memorising(Cause):
    """What is learned no longer carries over."""

    id = "memorising"
    title = "the training data is learned by heart"
    explains = frozenset({"overfitting", "metric_divergence"})

    def weigh(self, case: Case) -> Iterator[Evidence]:
        """How often the data was seen, parameters against samples, and what both losses did."""
        epochs = case.epochs_seen
        if epochs is not None and epochs >= MANY_EPOCHS:
            weight = STRONG if epochs >= VERY_MANY_EPOCHS else FAIR
            yield supports(weight, f"every sample has been seen about {epochs:.0f} times")
        elif epochs is not None and epochs < FEW_EPOCHS:
            yield opposes(STRONG, f"the data has been seen {epochs:.2g} times: too seldom to be learned by heart")
        ratio = case.samples_per_parameter
        if ratio is not None and ratio < 1:
            yield supports(FAIR, f"{1 / ratio:.3g} trained parameters for each sample")
        elif ratio is not None and ratio > 10:
            yield opposes(FAIR, f"{ratio:.3g} samples for each trained parameter")
        before, now = case.value("overfitting", "train_at_best"), case.value("overfitting", "train")
        if before is not None and now is not None and before > 0 and now < 0.9 * before:
            yield supports(FAIR, f"the training loss fell on from {before:.3g} to {now:.3g} since validation's best")
        if case.dropout == 0 and not case.hyper("weight_decay"):
            yield supports(SLIGHT, "neither dropout nor weight decay holds it back")
        if case.is_guessing:
            yield opposes(STRONG, "validation was never better than guessing: nothing was learned that could be lost")
        if case.found("eval_mode"):
            yield opposes(FAIR, "the model was trained in eval mode, which alone parts the two losses")
        if any(case.value("metric_divergence", kind) for kind in ("equal", "chance")):
            yield opposes(STRONG, "the evaluation itself is in doubt")

    def advise(self, case: Case) -> Advice:
        """Stop at the best, then regularise or get more data."""
        best = case.onset
        decay = case.hyper("weight_decay") or 0.0
        line = (
            f"weight_decay={max(0.01, 10 * decay):.2g}  # was {decay:.2g}; and nn.Dropout(0.1) between layers"
            if (case.dropout or 0.0) < 0.1
            else f"nn.Dropout({min(0.5, 2 * (case.dropout or 0.1)):.2g})  # was {case.dropout:.2g}"
        )
        return Advice(
            first_fix=f"keep the checkpoint of step {best}, where validation was best; then regularise, or add data",
            code=line,
            avoid="do not make the model bigger, and do not train longer: both widen the gap",
            verify="the best validation loss of the next run is lower, not only later",
        )
