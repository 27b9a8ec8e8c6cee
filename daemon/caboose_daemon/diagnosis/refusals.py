"""Advice that is not given: another optimizer, more epochs, a bigger model; each with the evidence for saying no.

Design
------
These are what people reach for when a run disappoints, and they are seldom the answer. So each needs a cause that calls
for it, near the head of the list and with a confidence that is worth an experiment; without one it is refused, and the
reason is what was seen in this case, in its own numbers. What is refused is not advised in the same breath: causes that
call for it and stay below that bar are left to what is unknown.
"""

from collections.abc import Mapping, Sequence

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.incidents.diagnosis_record import RankedCause, Refusal

OPTIMIZER, EPOCHS, SIZE = "another optimizer", "more epochs", "a bigger model"
CALLS_FOR: Mapping[str, str] = {
    "optimizer_unsuited": OPTIMIZER,
    "budget_too_short": EPOCHS,
    "too_little_capacity": SIZE,
}
"""Causes that are evidence for what people reach for."""
MIN_CONFIDENCE = 0.25
"""Below it a cause calls for nothing yet."""
STUCK = frozenset({"not_learning", "plateau", "underfitting", "oscillation", "divergence", "overfitting", "loss_spike"})
"""Where people reach for another optimizer or more epochs."""
HIGH = frozenset({"not_learning", "plateau", "underfitting", "overfitting"})
"""Where people reach for a bigger model."""


def refuse(case: Case, ranked: Sequence[RankedCause]) -> tuple[list[RankedCause], list[Refusal]]:
    """The causes that may be told, and what people reach for in a case like this, where nothing speaks for it."""
    told = set(case.reportable_rules)
    reached_for = ({OPTIMIZER, EPOCHS} if told & STUCK else set()) | ({SIZE} if told & HIGH else set())
    called_for = {CALLS_FOR.get(cause.id) for cause in ranked[:2] if cause.confidence >= MIN_CONFIDENCE}
    refused = reached_for - called_for
    causes = [cause for cause in ranked if CALLS_FOR.get(cause.id) not in refused]
    why = {
        OPTIMIZER: _why_no_optimizer(case, causes),
        EPOCHS: _why_no_epochs(case, told),
        SIZE: _why_no_size(case, told),
    }
    return causes, [Refusal(advice, reason) for advice, reason in why.items() if advice in refused]


def _why_no_optimizer(case: Case, causes: Sequence[RankedCause]) -> str:
    name = case.optimizer or "the optimizer"
    if causes and causes[0].evidence_for:
        return f"what was seen does not point at {name}: {causes[0].evidence_for[0]}"
    return f"nothing that was seen points at {name}, and a change of it changes everything else as well"


def _why_no_epochs(case: Case, told: set[str]) -> str:
    if "overfitting" in told:
        best, now = case.value("overfitting", "best"), case.value("overfitting", "validation_loss")
        numbers = f" from {best:.3g} to {now:.3g}" if best is not None and now is not None else ""
        return f"validation has been rising{numbers}: more of the same makes it worse"
    if told & {"divergence", "loss_spike", "oscillation"}:
        return "the run is unstable: more steps repeat what happened"
    slope = case.recent_trend
    if slope is None:
        return "there is no sign that the loss would go on falling"
    change, error = slope
    said = f"the loss changed by {100 * change:+.2g} % (+- {100 * error:.1g} %) over the last half of the run"
    if change < -2 * error:
        return f"{said}, and what was found stands in the way of more: mend that first"
    return f"{said}: more of the same would not move it"


def _why_no_size(case: Case, told: set[str]) -> str:
    ratio = case.samples_per_parameter
    if ratio is not None and ratio < 1:
        return f"it has {1 / ratio:.3g} trained parameters for each sample already"
    if "overfitting" in told:
        return "it learns its training data better than what it is for: more parameters widen that gap"
    return "nothing that was seen says that the model is too small; one batch learned by heart would tell"
