"""Refuses common advice that the evidence does not support: another optimizer, more epochs, a bigger model or batch, a
search over all settings.

Design
------
People try these when a run disappoints, and they seldom help. So each needs a cause that supports it, among the first
two and with a confidence that is worth an experiment. Without one it is refused, with this case's own numbers as the
reason. Refused advice is not given at the same time: causes that would support it, with less confidence, are left out.
"""

from collections.abc import Mapping, Sequence

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.incidents.diagnosis_record import RankedCause, Refusal

OPTIMIZER, EPOCHS, SIZE = "another optimizer", "more epochs", "a bigger model"
BATCH, SEARCH = "a larger batch", "a search over the settings"
CALLS_FOR: Mapping[str, str] = {
    "optimizer_unsuited": OPTIMIZER,
    "budget_too_short": EPOCHS,
    "too_little_capacity": SIZE,
}
"""The causes that support such advice."""
MIN_CONFIDENCE = 0.25
"""Confidence below which a cause supports no advice yet."""
STUCK = frozenset(
    {"not_learning", "plateau", "underfitting", "oscillation", "divergence", "overfitting", "loss_spike"}
) | {"generalisation_gap"}
"""Rules at which people try another optimizer or more epochs."""
NOISY = frozenset({"oscillation", "loss_spike", "plateau"})
"""Rules at which people try a larger batch."""
HIGH = frozenset({"not_learning", "plateau", "underfitting", "overfitting", "generalisation_gap"})
"""Rules at which people try a bigger model."""


def refuse(case: Case, ranked: Sequence[RankedCause]) -> tuple[list[RankedCause], list[Refusal]]:
    """The causes that remain, and the common advice for such a case that nothing supports."""
    rules = set(case.reportable_rules)
    tempting = ({OPTIMIZER, EPOCHS} if rules & STUCK else set()) | ({SIZE} if rules & HIGH else set())
    tempting |= ({BATCH} if rules & NOISY else set()) | ({SEARCH} if rules & (STUCK | HIGH) else set())
    supported = {CALLS_FOR.get(cause.id) for cause in ranked[:2] if cause.confidence >= MIN_CONFIDENCE}
    if any(cause.id == "batch_too_small" for cause in ranked):
        supported.add(BATCH)
    refused = tempting - supported
    causes = [cause for cause in ranked if CALLS_FOR.get(cause.id) not in refused]
    why = {
        OPTIMIZER: _why_no_optimizer(case, causes),
        EPOCHS: _why_no_epochs(case, rules),
        SIZE: _why_no_size(case, rules),
        BATCH: _why_no_batch(case),
        SEARCH: _why_no_search(causes),
    }
    return causes, [Refusal(advice, reason) for advice, reason in why.items() if advice in refused]


def _why_no_optimizer(case: Case, causes: Sequence[RankedCause]) -> str:
    name = case.optimizer or "the optimizer"
    if causes and causes[0].evidence_for:
        return f"the evidence does not point at {name}: {causes[0].evidence_for[0]}"
    return f"no evidence points at {name}, and another one needs other settings"


def _why_no_epochs(case: Case, rules: set[str]) -> str:
    if "generalisation_gap" in rules and "overfitting" not in rules:
        return "validation stands while training gets better: more epochs widen the gap"
    if "overfitting" in rules:
        best, now = case.value("overfitting", "best"), case.value("overfitting", "validation_loss")
        numbers = f" from {best:.3g} to {now:.3g}" if best is not None and now is not None else ""
        return f"validation loss rose{numbers}: more epochs raise it further"
    if rules & {"divergence", "loss_spike", "oscillation"}:
        return "the run is unstable: more steps do not change that"
    slope = case.recent_trend
    if slope is None:
        return "too few steps to see whether the loss still falls"
    change, error = slope
    text = f"loss changed by {100 * change:+.2g} % (+- {100 * error:.1g} %) over the last half of the run"
    if change < -2 * error:
        return f"{text}, and this incident limits it: fix that first"
    return f"{text}: more epochs would not change it"


def _why_no_size(case: Case, rules: set[str]) -> str:
    ratio = case.samples_per_parameter
    if ratio is not None and ratio < 1:
        return f"{1 / ratio:.3g} trained parameters per sample already"
    if rules & {"overfitting", "generalisation_gap"}:
        return "the model fits the training data better than the validation data: more parameters widen that gap"
    return "no evidence that the model is too small; check first whether it can memorise one batch"


def _why_no_batch(case: Case) -> str:
    ratio, batch = case.value("batch_size", "ratio"), case.batch
    of = "the batch" if batch is None else f"the batch of {batch:,.0f}"
    if ratio is not None:
        return f"the gradient noise scale is {ratio:.3g}x {of}"
    if case.world > 1 and case.sees("local_gradients") and case.is_quiet("batch_size"):
        return f"the gradient noise scale is not far above {of}"
    return f"nothing shows that {of} is too small; a larger one takes fewer steps, and needs another learning rate"


def _why_no_search(causes: Sequence[RankedCause]) -> str:
    if causes and causes[0].evidence_for:
        return f"the evidence points at one thing ({causes[0].title}): change that alone, so that the effect is seen"
    return "settings are searched once the run learns at all; until then every trial shows the same fault"
