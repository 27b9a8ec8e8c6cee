"""Symptoms as users describe them, and the rules that detect them."""

import re
from dataclasses import dataclass

from caboose_daemon.incidents.causal_links import BREAKS, IN_LAYERS, STANDS_STILL


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
    Symptom("creeps", "the loss falls, but very slowly", "lr_too_low", frozenset({"plateau", "underfitting"})),
    Symptom("explodes", "the gradients explode", "gradient_explosion", frozenset({"clipping", "lr_too_high"})),
    Symptom("vanishes", "the gradients vanish", "gradient_vanishing", IN_LAYERS),
)
OTHER = "other"
"""The word for a symptom in one's own words."""
WORDS: dict[str, tuple[str, ...]] = {
    "nan": ("nan", "inf", "infinite", "infinity"),
    "spike": ("spike", "spikes", "spiking"),
    "diverges": ("diverge", "diverges", "diverging", "divergence", "rises", "blows"),
    "stuck": ("stuck", "chance", "learn", "learning", "constant", "random"),
    "plateau": ("plateau", "plateaus", "flat", "stopped", "stalls", "stagnates"),
    "swings": ("oscillates", "oscillating", "oscillation", "swings", "unstable", "noisy", "jumps"),
    "overfits": ("overfit", "overfits", "overfitting", "validation", "generalise", "generalize"),
    "underfits": ("underfit", "underfits", "underfitting", "poor"),
    "metric": ("accuracy", "metric", "score"),
    "slow": ("throughput", "seconds", "gpu", "dataloader", "loading"),
    "hangs": ("hang", "hangs", "hanging", "deadlock", "frozen", "timeout", "disappeared"),
    "creeps": ("slowly", "creeps", "creeping"),
    "explodes": ("explode", "explodes", "exploding", "explosion"),
    "vanishes": ("vanish", "vanishes", "vanishing"),
}
"""Words that point to a symptom; a whole word counts."""


def find(text: str) -> Symptom | None:
    """By its number in the list, counted from 1, or its name."""
    text = text.strip().lower()
    if text.isdecimal() and 1 <= int(text) <= len(SYMPTOMS):
        return SYMPTOMS[int(text) - 1]
    return next((symptom for symptom in SYMPTOMS if symptom.name == text), None)


def find_all(text: str) -> tuple[Symptom, ...]:
    """Several numbers or names, with commas or spaces between, each once; none if one of them is neither."""
    found = [find(word) for word in re.split(r"[,\s]+", text.strip()) if word]
    known = [symptom for symptom in found if symptom is not None]
    return tuple(dict.fromkeys(known)) if len(known) == len(found) else ()


def described(text: str) -> tuple[Symptom, ...]:
    """The symptoms that a description in one's own words points to, the most words first; at most three."""
    words = re.findall(r"[a-z]+", text.lower())
    counts = {name: sum(word in known for word in words) for name, known in WORDS.items()}
    best = sorted((name for name, count in counts.items() if count), key=lambda name: -counts[name])
    return tuple(symptom for name in best[:3] if (symptom := find(name)) is not None)
