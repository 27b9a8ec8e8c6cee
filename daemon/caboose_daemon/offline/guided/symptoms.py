"""Symptoms as users describe them, and the rules that detect them."""

from dataclasses import dataclass

from caboose_daemon.incidents.causal_links import BREAKS, STANDS_STILL


@dataclass(frozen=True)
class Symptom:
    """One entry of the list."""

    name: str
    text: str
    rule: str
    """The rule that detects it; the symptom counts as its finding."""
    related: frozenset[str] = frozenset()
    """Other rules whose incidents show it."""

    @property
    def rules(self) -> frozenset[str]:
        """All rules whose incidents show it."""
        return self.related | {self.rule}


SYMPTOMS: tuple[Symptom, ...] = (
    Symptom("nan", "the loss or the gradients are NaN or infinite", "non_finite", frozenset({"loss_scale_collapse"})),
    Symptom("spike", "the loss spikes now and then", "loss_spike", frozenset({"bad_batch", "gradient_explosion"})),
    Symptom("diverges", "the loss rises and stays up", "divergence", BREAKS | {"lr_too_high"}),
    Symptom("stuck", "the loss does not fall from the start", "not_learning", STANDS_STILL | {"frozen_parameters"}),
    Symptom("plateau", "the loss fell and has stopped falling", "plateau", STANDS_STILL | {"lr_too_low"}),
    Symptom("swings", "the loss swings up and down", "oscillation", frozenset({"lr_too_high"})),
    Symptom("overfits", "validation gets worse while training gets better", "overfitting"),
    Symptom("underfits", "training and validation are both poor", "underfitting", STANDS_STILL),
    Symptom("metric", "the loss falls, but the metric does not improve", "metric_divergence"),
    Symptom(
        "slow", "steps take longer than they should", "throughput_regression", frozenset({"straggler", "data_starved"})
    ),
    Symptom("hangs", "the run hangs, or a rank disappeared", "job_stalled", frozenset({"rank_silent"})),
)


def find(text: str) -> Symptom | None:
    """By its number in the list, counted from 1, or its name."""
    text = text.strip().lower()
    if text.isdecimal() and 1 <= int(text) <= len(SYMPTOMS):
        return SYMPTOMS[int(text) - 1]
    return next((symptom for symptom in SYMPTOMS if symptom.name == text), None)
