"""The loss is another one than was meant: negated, or made of numbers that it does not expect."""

from collections.abc import Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import DECISIVE, FAIR, STRONG, Cause, Evidence, opposes, supports
from caboose_daemon.incidents.causal_links import BREAKS, STANDS_STILL
from caboose_daemon.incidents.diagnosis_record import Advice
from caboose_daemon.rules.parts.risky_model import MISTAKES

OF_ITS_FORM = ("no_log", "over_batch")
"""Mistakes that leave the loss above zero."""


class WrongLoss(Cause):
    """A loss whose minimum is not what the model should learn."""

    id = "wrong_loss"
    title = "wrong sign or form of the loss"
    is_plain = True
    explains = (
        BREAKS
        | STANDS_STILL
        | {"config_advice", "lr_too_high", "oscillation", "clipping", "metric_divergence", "overfitting"}
    )
    rarity = 1.0

    def weigh(self, case: Case) -> Iterator[Evidence]:
        mistake = case.fact("loss_mistake")
        if mistake == "softmax_twice":
            yield opposes(FAIR, "the loss has a second softmax, which is another mistake")
        elif mistake in MISTAKES:
            yield supports(DECISIVE, MISTAKES[mistake])
        elif case.fact("loss_kind"):
            yield opposes(FAIR, f"the loss's graph shows a plain {case.fact('loss_kind')}")
        losses = case.since("loss")
        if case.value("divergence", "runs_away"):
            yield supports(DECISIVE, "the loss runs to minus infinity: what was meant has a least value")
        elif len(losses) and losses.min() >= 0 and mistake not in OF_ITS_FORM:
            yield opposes(STRONG, "the loss was never below zero")

    def advise(self, case: Case) -> Advice:
        if case.fact("loss_mistake") == "no_log":
            return Advice(
                first_fix="give nll_loss the logarithms, or cross_entropy the logits",
                code="loss = F.cross_entropy(logits, targets)  # not F.nll_loss(logits.softmax(-1), targets)",
                avoid="do not change learning rate or model: this loss has another minimum",
                verify="the loss of the untrained model is near ln(classes)",
            )
        if case.fact("loss_mistake") == "over_batch":
            return Advice(
                first_fix="take the softmax over the classes, which are the last dimension",
                code="loss = F.cross_entropy(logits, targets)  # not F.nll_loss(F.log_softmax(logits, dim=0), targets)",
                avoid="do not change learning rate or model: samples of a batch compete with each other in this loss",
                verify="the loss of the untrained model is near ln(classes), not near ln(batch size)",
            )
        return Advice(
            first_fix="remove the minus sign: the optimizer makes its loss smaller",
            code="loss = F.cross_entropy(logits, targets)  # not -F.cross_entropy(logits, targets)",
            avoid="do not lower the learning rate: the model then unlearns more slowly",
            verify="the loss is positive and falls, and the accuracy rises",
        )
