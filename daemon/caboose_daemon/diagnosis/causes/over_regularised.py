"""Weight decay, dropout or noise are so strong that the model may not learn what it could."""

from collections.abc import Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import Cause
from caboose_daemon.diagnosis.evidence import DECISIVE, FAIR, SLIGHT, STRONG, Evidence, opposes, supports
from caboose_daemon.incidents.diagnosis_record import Advice

STRONG_L2 = 5e-3
"""A decay that is added to the gradient; 1e-4 to 5e-4 are usual."""
STRONG_DECOUPLED = 0.3
"""A decay of AdamW and its kin; 0.01 to 0.1 are usual."""
STRONG_DROPOUT = 0.6
WEAK = 0.1
"""Share of a strong decay, or dropout, below which it hardly matters."""


class OverRegularised(Cause):
    """Held back by its own settings."""

    id = "over_regularised"
    title = "regularised too strongly"
    explains = frozenset({"underfitting", "plateau", "not_learning", "activation_collapse", "gradient_vanishing"})

    def weigh(self, case: Case) -> Iterator[Evidence]:
        """The settings against usual ones, and which of the two losses is lower."""
        decay, dropout = case.hyper("weight_decay"), case.dropout
        if decay is None and dropout is None:
            yield opposes(FAIR, "neither weight decay nor dropout is known")
        usual = _strong_decay(case)
        if decay is not None and decay >= usual:
            text = f"weight_decay {decay:g} is {decay / (usual / 10):.2g} times what is usual with {case.optimizer}"
            yield supports(STRONG, text)
            if decay >= 5 * usual:
                yield supports(FAIR, "at such a decay the weights themselves cannot grow")
        if dropout is not None and dropout >= STRONG_DROPOUT:
            yield supports(STRONG, f"dropout {dropout:g} takes out most of a layer at every step")
        if decay is not None and dropout is not None and decay < WEAK * usual and dropout < WEAK:
            yield opposes(DECISIVE, f"weight decay {decay:g} and dropout {dropout:g} are next to nothing")
        elif decay is not None and dropout is not None and decay < usual and dropout < STRONG_DROPOUT:
            yield opposes(FAIR, f"weight decay {decay:g} and dropout {dropout:g} are usual")
        level, validation = case.value("underfitting", "level"), case.value("underfitting", "validation")
        if level is not None and validation is not None and dropout and validation < 0.97 * level:
            text = f"validation ({validation:.3g}), made without dropout, is below training ({level:.3g})"
            yield supports(SLIGHT, text)

    def advise(self, case: Case) -> Advice:
        """Less of what is strongest."""
        decay, dropout = case.hyper("weight_decay") or 0.0, case.dropout or 0.0
        if dropout >= STRONG_DROPOUT:
            line = f"nn.Dropout(0.1)  # was {dropout:g}"
        else:
            line = f"weight_decay={_strong_decay(case) / 10:g}  # was {decay:g}"
        return Advice(
            first_fix="take the regularisation down to what is usual",
            code=line,
            avoid="do not make the model bigger: what holds it back would hold that one too",
            verify="the training loss falls below the floor within an epoch",
        )


def _strong_decay(case: Case) -> float:
    name = case.optimizer.lower()
    is_decoupled = name.endswith("w") or any(word in name for word in ("lion", "lamb", "adan", "muon"))
    return STRONG_DECOUPLED if is_decoupled else STRONG_L2
