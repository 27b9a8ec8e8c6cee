"""Validation data differs from training data: other preprocessing, another source, or a change during the run."""

from collections.abc import Iterator

from caboose_daemon.diagnosis import curves
from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import DECISIVE, FAIR, SLIGHT, STRONG, Cause, Evidence, opposes, supports
from caboose_daemon.diagnosis.causes.memorising import APART, FEW_EPOCHS, MANY_EPOCHS, when_learned, while_new
from caboose_daemon.incidents.diagnosis_record import Advice
from caboose_daemon.rules.parts.risky_model import DOMINANT

BY_HEART = 0.05
"""Training loss over that of a guess, below which samples are known by heart, where others are only guessed."""
TOGETHER = 1.1
"""Validation over training loss, below which the two agree."""


class ValidationShift(Cause):
    """Validation and training data from different distributions."""

    id = "validation_shift"
    title = "validation data unlike the training data"
    explains = frozenset({"overfitting", "generalisation_gap", "metric_divergence"})
    rarity = 0.5

    def weigh(self, case: Case) -> Iterator[Evidence]:
        epochs, share = case.epochs_seen, case.commonest_share
        if share is not None and share > DOMINANT:
            yield opposes(STRONG, f"{100 * share:.0f} % of the training targets are of one class: that alone does it")
        if epochs is not None and epochs < FEW_EPOCHS:
            yield supports(STRONG, f"the losses differ after {epochs:.2g} epochs, too few to memorise")
        elif epochs is not None and epochs > MANY_EPOCHS:
            yield opposes(FAIR, f"{epochs:,.0f} epochs so far: the data may be memorised")
        if curves.validation_left(case) is not None:
            yield opposes(STRONG, f"validation was as good as training until step {case.onset:,}")
        if case.value("metric_divergence", "noisy"):
            yield opposes(DECISIVE, "validation is answered better than training")
            return
        if any(case.value("metric_divergence", kind) for kind in ("equal", "chance")):
            yield opposes(STRONG, "the evaluation itself is doubtful")
        else:
            if case.fact("loss_of_pairs"):
                return  # in batches of other sizes it has another level
            if case.value("metric_divergence", "apart"):
                yield supports(STRONG, "training and validation never had one level, since the first evaluations")
            yield from self._while_new(case) if epochs is not None else self._when_learned(case)

    def _while_new(self, case: Case) -> Iterator[Evidence]:
        """The two losses at the last evaluation at which training samples could not be memorised yet."""
        known = while_new(case)
        if known is None:
            return
        text = f"validation loss {known.loss:.3g}, training loss {known.train:.3g} at step {known.step:,}"
        if known.loss > APART * known.train:
            yield supports(STRONG, f"{text}, before samples were memorised")
        elif known.loss < TOGETHER * known.train:
            yield opposes(STRONG, f"{text}, before samples were memorised")

    def _when_learned(self, case: Case) -> Iterator[Evidence]:
        """Where epochs are unknown: the first evaluation of a model that had learned anything, and the best one."""
        known = when_learned(case)
        if known is not None and known.is_apart:
            text = f"validation loss {known.loss:.3g}, training loss {known.train:.3g} at step {known.step:,}"
            weight = STRONG if case.is_guessing else SLIGHT  # few samples can be memorised before the first evaluation
            yield supports(weight, f"{text}: apart as soon as anything was learned")
        elif known is not None and known.loss < TOGETHER * known.train:
            yield opposes(STRONG, f"both losses were near {known.train:.3g} at step {known.step:,}")
        share, level, guess = curves.half_fall(case), case.level, case.guess
        if level is not None and guess is not None and 0 < level < BY_HEART * guess:
            yield opposes(STRONG, f"the training loss is down to {100 * level / guess:.2g} % of a guess: by heart")
        elif case.is_guessing and share is not None:
            if share < curves.QUICK:
                text = f"half of the training loss's fall was over after {100 * share:.0f} % of the run"
                yield supports(STRONG, f"{text}: it learned a rule, and validation was never better than a guess")
            elif share > curves.SLOW:
                yield opposes(FAIR, "the training loss fell late, as when samples are memorised one by one")

    def advise(self, case: Case) -> Advice:
        return Advice(
            first_fix="evaluate a few hundred training samples with the validation code",
            code="validate(model, Subset(train_set, range(500)))  # must give about the training loss",
            avoid="do not regularise or shrink the model before the two losses agree on the same samples",
            verify="the same samples have the same loss in training and validation code; then compare preprocessing",
        )
