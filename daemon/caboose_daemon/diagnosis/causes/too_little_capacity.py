"""The model cannot represent what the task needs."""

from collections.abc import Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import Cause
from caboose_daemon.diagnosis.evidence import DECISIVE, FAIR, SLIGHT, STRONG, Evidence, opposes, supports
from caboose_daemon.incidents.diagnosis_record import Advice

FEW_PARAMETERS = 20.0
"""Samples per parameter, above which a model is small for its data."""
AT_CHANCE = 0.97


class TooLittleCapacity(Cause):
    """Too small, or of the wrong kind, for the task."""

    id = "too_little_capacity"
    title = "the model is too small for the task"
    explains = frozenset({"underfitting", "plateau", "config_advice"})

    def weigh(self, case: Case) -> Iterator[Evidence]:
        """It learned what it could, nothing holds it back, and there is little of it."""
        level, validation = case.value("underfitting", "level"), case.value("underfitting", "validation")
        reference = case.value("underfitting", "reference")
        if level is not None and reference is not None and reference > 0:
            if level < AT_CHANCE * reference:
                text = f"it learned something and stopped: a loss of {level:.3g}, against {reference:.3g} for none"
                yield supports(SLIGHT, text)
            else:
                yield opposes(STRONG, f"a loss of {level:.3g} is what a model has that learned nothing")
        if level is not None and validation is not None and abs(validation / level - 1) < 0.05:
            text = f"training ({level:.3g}) and validation ({validation:.3g}) are one: nothing is learned by heart"
            yield supports(SLIGHT, text)
        if case.modules and not case.fact("activations") and all(_is_linear(module.kind) for module in case.modules):
            yield supports(STRONG, "no activation was seen in the model: it is linear")
        ratio = case.samples_per_parameter
        if ratio is not None and ratio > FEW_PARAMETERS:
            yield supports(FAIR, f"{ratio:.3g} samples for each of its {case.setting('num_trainable'):,.0f} parameters")
        elif ratio is not None and ratio < 1:
            yield opposes(STRONG, f"it has {1 / ratio:.3g} parameters for each sample")
        if case.found("dead_units", "saturation", "gradient_vanishing", "frozen_parameters"):
            yield opposes(FAIR, "a part of the model does not work, whatever its size")
        decay, dropout = case.hyper("weight_decay"), case.dropout
        if decay is not None and decay <= 1e-3 and dropout is not None and dropout <= 0.2:
            yield supports(SLIGHT, f"weight decay {decay:g} and dropout {dropout:g} hardly hold it back")
        peak, now = case.lr_peak, case.lr_now
        if peak and now is not None and now < 0.01 * peak:
            yield opposes(FAIR, f"the learning rate is down at {now:.2g} from {peak:.2g}")
        if case.validations:
            step, last = case.validations[-1]
            train = case.train_at(step)
            if train is not None and last.loss > 1.25 * train > 0:
                yield opposes(DECISIVE, f"validation ({last.loss:.3g}) is far above training ({train:.3g})")

    def advise(self, case: Case) -> Advice:
        """Twice the width, after one batch was learned by heart."""
        size = case.setting("num_trainable")
        was = f"  # {size:,.0f} trained parameters now" if size else ""
        return Advice(
            first_fix="see whether it can learn one batch by heart; if it cannot, double the width and add a layer",
            code=f"hidden = 2 * hidden{was}",
            avoid="do not train longer: the curve has been flat, and a new optimizer finds the same floor",
            verify="training loss falls below the floor; validation follows it at first",
        )


def _is_linear(kind: str) -> bool:
    return kind in ("Linear", "Embedding", "EmbeddingBag") or kind.startswith(("Conv", "BatchNorm", "AvgPool"))
