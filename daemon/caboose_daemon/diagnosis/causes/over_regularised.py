"""Weight decay, dropout or noise is so strong that the model cannot learn what it could."""

from collections.abc import Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import (
    DECISIVE,
    FAIR,
    SLIGHT,
    STRONG,
    Cause,
    Evidence,
    line_to_set,
    line_to_set_dropout,
    opposes,
    supports,
)
from caboose_daemon.incidents.diagnosis_record import Advice
from caboose_daemon.rules.parts.risky_model import HIGH_DROPOUT

STRONG_L2 = 5e-3
"""Weight decay added to the gradient; 1e-4 to 5e-4 are usual."""
STRONG_DECOUPLED = 0.3
"""Decoupled weight decay, as in AdamW; 0.01 to 0.1 are usual."""
STRONG_DROPOUT = 0.6
WEAK = 0.1
"""Share of a strong weight decay, or a dropout, below which it hardly matters."""


class OverRegularised(Cause):
    """Regularisation that limits learning."""

    id = "over_regularised"
    title = "regularisation too strong"
    is_plain = True
    explains = frozenset(
        {"underfitting", "plateau", "not_learning", "activation_collapse", "gradient_vanishing", "config_advice"}
    )

    def weigh(self, case: Case) -> Iterator[Evidence]:
        decay, dropout = case.hyper("weight_decay"), case.dropout
        if decay is None and dropout is None:
            yield opposes(FAIR, "weight decay and dropout are unknown")
        usual = _strong_decay(case)
        if decay is not None and decay >= usual:
            text = f"weight_decay {decay:g} is {decay / (usual / 10):.2g}x the usual one with {case.optimizer}"
            yield supports(STRONG, text)
            if decay >= 5 * usual:
                yield supports(FAIR, "at this weight decay the weights cannot grow")
        if dropout is not None and dropout >= STRONG_DROPOUT:
            weight = DECISIVE if dropout >= HIGH_DROPOUT else STRONG
            yield supports(weight, f"dropout {dropout:g} removes most of a layer at every step")
        if decay is not None and dropout is not None and decay < WEAK * usual and dropout < WEAK:
            yield opposes(DECISIVE, f"weight decay {decay:g} and dropout {dropout:g} are negligible")
        elif decay is not None and dropout is not None and decay < usual and dropout < STRONG_DROPOUT:
            yield opposes(FAIR, f"weight decay {decay:g} and dropout {dropout:g} are usual")
        level, validation = case.value("underfitting", "level"), case.value("underfitting", "validation")
        if level is not None and validation is not None and dropout and validation < 0.97 * level:
            text = f"validation loss {validation:.3g}, without dropout, is below training loss {level:.3g}"
            yield supports(SLIGHT, text)

    def advise(self, case: Case) -> Advice:
        decay, dropout = case.hyper("weight_decay") or 0.0, case.dropout or 0.0
        if dropout >= STRONG_DROPOUT:
            line = line_to_set_dropout(case, 0.1)
        else:
            line = line_to_set(case, "weight_decay", f"{_strong_decay(case) / 10:g}", f"was {decay:g}")
        return Advice(
            first_fix="lower the regularisation to a usual value",
            code=line,
            avoid="do not make the model bigger: the regularisation would limit it too",
            verify="the training loss falls below its present level within an epoch",
        )


def _strong_decay(case: Case) -> float:
    name = case.optimizer.lower()
    is_decoupled = name.endswith("w") or any(word in name for word in ("lion", "lamb", "adan", "muon"))
    return STRONG_DECOUPLED if is_decoupled else STRONG_L2
