"""The model cannot represent what the task needs."""

from collections.abc import Iterator

from caboose_daemon.diagnosis import model_facts
from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import DECISIVE, FAIR, SLIGHT, STRONG, Cause, Evidence, opposes, supports
from caboose_daemon.incidents.diagnosis_record import Advice

FEW_PARAMETERS = 20.0
"""Samples per parameter above which a model is small for its data."""
AT_CHANCE = 0.97
LINEAR_AT_CHANCE = 0.9


class TooLittleCapacity(Cause):
    """A model that is too small, or of the wrong kind, for the task."""

    id = "too_little_capacity"
    title = "model too small"
    is_plain = True
    explains = frozenset({"underfitting", "plateau", "config_advice"})

    def weigh(self, case: Case) -> Iterator[Evidence]:
        is_linear = model_facts.is_linear(case)
        level, validation = case.value("underfitting", "level"), case.value("underfitting", "validation")
        reference = case.value("underfitting", "reference")
        if level is not None and reference is not None and reference > 0:
            if level < AT_CHANCE * reference:
                text = f"loss fell to {level:.3g} and stopped; {reference:.3g} without learning"
                yield supports(SLIGHT, text)
            elif not is_linear:
                yield opposes(STRONG, f"loss {level:.3g} is that of a model that learned nothing")
        if level is not None and validation is not None and abs(validation / level - 1) < 0.05:
            text = f"training loss {level:.3g} and validation loss {validation:.3g} are equal: nothing is memorised"
            yield supports(SLIGHT, text)
        if (pairs := case.setting("linear_pairs")) is not None and pairs > 0:
            yield supports(DECISIVE, f"{pairs:.0f} linear layers follow another one directly: together they are linear")
        elif is_linear:
            yield supports(STRONG, "no activation in the model: it is linear")
            if case.chance is not None and case.level is not None and case.level > LINEAR_AT_CHANCE * case.chance:
                yield supports(FAIR, "its loss is near chance, as where no line parts the classes")
        ratio = case.samples_per_parameter
        if ratio is not None and ratio > FEW_PARAMETERS:
            yield supports(FAIR, f"{ratio:.3g} samples per parameter ({case.setting('num_trainable'):,.0f} parameters)")
        elif ratio is not None and ratio < 1:
            yield opposes(STRONG, f"{1 / ratio:.3g} parameters per sample")
        if case.found("dead_units", "saturation", "gradient_vanishing", "frozen_parameters"):
            yield opposes(FAIR, "a part of the model does not learn, whatever its size")
        decay, dropout = case.hyper("weight_decay"), case.dropout
        if decay is not None and decay <= 1e-3 and dropout is not None and dropout <= 0.2:
            yield supports(SLIGHT, f"weight decay {decay:g} and dropout {dropout:g} hardly limit it")
        peak, now = case.lr_peak, case.lr_now
        if peak and now is not None and now < 0.01 * peak:
            yield opposes(FAIR, f"learning rate is down to {now:.2g} from {peak:.2g}")
        if case.validations:
            step, last = case.validations[-1]
            train = case.train_at(step)
            if train is not None and last.loss > 1.25 * train > 0:
                yield opposes(DECISIVE, f"validation loss {last.loss:.3g} is far above training loss {train:.3g}")

    def advise(self, case: Case) -> Advice:
        if case.setting("linear_pairs"):
            return Advice(
                first_fix="put an activation between the linear layers",
                code="block = nn.Sequential(nn.Linear(i, h), nn.ReLU(), nn.Linear(h, o))",
                avoid="do not add layers or units first: without an activation they are still one linear layer",
                verify="the training loss falls below its present level",
            )
        size = case.setting("num_trainable")
        was = f"  # {size:,.0f} trained parameters now" if size else ""
        return Advice(
            first_fix="check whether it can memorise one batch; if not, double the width and add a layer",
            code=f"hidden = 2 * hidden{was}",
            avoid="do not train longer or change the optimizer: the loss is flat at the model's limit",
            verify="the training loss falls below its present level, and validation follows at first",
        )
