"""The model memorises its training data: too little data, seen too often, for so many parameters."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from caboose_daemon.diagnosis import curves
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
from caboose_daemon.incidents.causal_links import STANDS_STILL
from caboose_daemon.incidents.diagnosis_record import Advice

FEW_EPOCHS = 2.0
"""Epochs below which nothing can be memorised."""
MANY_EPOCHS = 10.0
VERY_MANY_EPOCHS = 50.0


APART, FAR_APART = 1.25, 2.0
"""Validation over training loss, above which the two differ, and above which they never belonged together."""
SMALL = 0.3
"""Share of the first loss below which training samples are known by heart, where validation no longer improves."""
LEARNED = 0.8
"""Share of its first value below which the training loss must be before the two are compared."""
LEARNED_FROM_CHANCE = 0.9
"""Share of chance below which a loss shows that something is learned."""


class WhileNew(NamedTuple):
    """Both losses at the last evaluation at which training samples could not be memorised yet."""

    step: int
    loss: float
    train: float

    @property
    def is_apart(self) -> bool:
        return self.loss > FAR_APART * self.train


def while_new(case: Case) -> WhileNew | None:
    """None where there was no such evaluation, or the model had learned too little by then."""
    new = [
        WhileNew(step, found.loss, train)
        for step, found in case.validations
        if (epochs := case.epochs_at(step)) is not None and epochs < FEW_EPOCHS and (train := case.train_at(step))
    ]
    losses = case.curve("loss")
    losses = losses[np.isfinite(losses)]
    return new[-1] if new and len(losses) and new[-1].train <= LEARNED * float(losses[0]) else None


def when_learned(case: Case) -> WhileNew | None:
    """Both losses at the first evaluation at which the model had learned anything: how far they are apart shows what
    memorising has no part in, or hardly any."""
    losses = case.curve("loss")
    losses = losses[np.isfinite(losses)]
    if not len(losses) or not curves.has_first_step(case):
        return None
    known = (WhileNew(step, found.loss, train) for step, found in case.validations if (train := case.train_at(step)))
    return next((one for one in known if one.train <= LEARNED * float(losses[0])), None)


def was_learned_while_new(case: Case, chance: float) -> bool:
    """Whether the training loss fell before samples could be memorised, or at once where epochs are unknown.

    Then the labels match the inputs.
    """
    if case.epochs_seen is None:
        share = curves.half_fall(case)
        return share is not None and share < curves.QUICK
    new = [s.step for s in case.recent if (epochs := case.epochs_at(s.step)) is not None and epochs < FEW_EPOCHS]
    train = case.train_at(new[-1]) if new else None
    return train is not None and train < LEARNED_FROM_CHANCE * chance


class Memorising(Cause):
    """Training data that is memorised instead of generalised."""

    id = "memorising"
    title = "memorised training data"
    explains = frozenset({"overfitting", "generalisation_gap", "metric_divergence", "data_repetition"})

    def weigh(self, case: Case) -> Iterator[Evidence]:
        epochs = case.epochs_seen
        if epochs is not None and epochs >= MANY_EPOCHS:
            weight = STRONG if epochs >= VERY_MANY_EPOCHS else FAIR
            yield supports(weight, f"about {epochs:,.0f} epochs so far")
        elif epochs is not None and epochs < FEW_EPOCHS:
            yield opposes(STRONG, f"{epochs:.2g} epochs so far: too few to memorise")
        drop = case.value("data_repetition", "drop")
        if drop is not None:
            yield supports(DECISIVE, f"loss falls by {100 * drop:.2g} % at the border of epochs, as samples come again")
        apart = when_learned(case) if epochs is None else while_new(case)
        if apart is not None and apart.is_apart:
            weight = STRONG if epochs is not None or case.is_guessing else SLIGHT
            yield opposes(weight, f"validation loss {apart.loss:.3g} was far above {apart.train:.3g} before that")
        ratio = case.samples_per_parameter
        if ratio is not None and ratio < 1:
            yield supports(FAIR, f"{1 / ratio:.3g} trained parameters per sample")
        elif ratio is not None and ratio > 10:
            yield opposes(FAIR, f"{ratio:.3g} samples per trained parameter")
        before, now = case.value("overfitting", "train_at_best"), case.value("overfitting", "train")
        if before is not None and now is not None and before > 0 and now < 0.9 * before:
            yield supports(FAIR, f"training loss fell from {before:.3g} to {now:.3g} since the best validation")
        level, start = case.value("generalisation_gap", "train"), case.chance or curves.first_loss(case)
        if level is not None and start is not None and level < SMALL * start:
            yield supports(FAIR, f"training loss is down to {level:.3g}, of {start:.3g} at first; validation stays")
        if case.dropout == 0 and not case.hyper("weight_decay"):
            yield supports(SLIGHT, "neither dropout nor weight decay")
        if case.is_guessing:
            yield opposes(STRONG, "validation was never better than chance: nothing was generalised before")
            if case.chance is not None and was_learned_while_new(case, case.chance):
                yield opposes(STRONG, "the training loss was below chance while its samples were new: it generalises")
        if case.found(*STANDS_STILL) and not case.found("overfitting"):
            yield opposes(STRONG, "the training loss stands still: it is not memorised")
        if case.found("eval_mode"):
            yield opposes(FAIR, "training in eval mode alone separates the two losses")
        if any(case.value("metric_divergence", kind) for kind in ("equal", "chance")):
            yield opposes(STRONG, "the evaluation itself is doubtful")

    def advise(self, case: Case) -> Advice:
        best = case.onset
        decay = case.hyper("weight_decay") or 0.0
        was = f"was {decay:.2g}; and nn.Dropout(0.1) between layers"
        line = (
            line_to_set(case, "weight_decay", f"{max(0.01, 10 * decay):.2g}", was)
            if (case.dropout or 0.0) < 0.1
            else line_to_set_dropout(case, min(0.5, 2 * (case.dropout or 0.1)))
        )
        return Advice(
            first_fix=f"keep the checkpoint of step {best:,}, where validation was best, then regularise or add data",
            code=line,
            avoid="do not make the model bigger or train longer: both widen the gap",
            verify="the best validation loss of the next run is lower, not only later",
        )
