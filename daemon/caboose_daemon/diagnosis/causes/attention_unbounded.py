"""Queries and keys have no norm that bounds them, and their weights grow at this learning rate."""

from collections.abc import Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import DECISIVE, FAIR, SLIGHT, Cause, Evidence, line_to_scale_lr, opposes, supports
from caboose_daemon.incidents.causal_links import BREAKS, STANDS_STILL
from caboose_daemon.incidents.diagnosis_record import Advice


class AttentionUnbounded(Cause):
    """Attention logits without a bound."""

    id = "attention_unbounded"
    title = "queries and keys without a norm"
    explains = BREAKS | STANDS_STILL | {"attention_logits", "gradient_vanishing"}

    def weigh(self, case: Case) -> Iterator[Evidence]:
        logit, growth = case.value("attention_logits", "logit"), case.value("attention_logits", "growth")
        if logit is None or growth is None:
            yield opposes(DECISIVE, "no attention is known to have growing logits")
            return
        yield supports(DECISIVE, f"attention logits can reach {logit:,.0f}, {growth:.3g}x their lowest level")
        if case.came_first("attention_logits"):
            yield supports(FAIR, "they grew before anything else was found")
        elif case.found("non_finite"):
            yield opposes(FAIR, "numbers were broken before")
        if not case.hyper("weight_decay"):
            yield supports(SLIGHT, "no weight decay holds the weights of queries and keys")

    def advise(self, case: Case) -> Advice:
        return Advice(
            first_fix="normalise queries and keys of each head before attention, or divide the learning rate by 3",
            code=line_to_scale_lr(case, case.lr, 1 / 3),
            avoid="do not tighten gradient clipping: adaptive optimizers undo the scale of a gradient",
            verify="the largest possible attention logit stays below 100",
        )
