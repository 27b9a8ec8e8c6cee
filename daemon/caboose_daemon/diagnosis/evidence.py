"""Evidence: one observation in words and numbers, and how much it should move a belief.

Weights are differences of log-odds, as in a naive Bayes classifier: an observation that is e times likelier under the
cause than without it weighs 1. Four sizes are enough, and all that anyone can honestly tell apart.
"""

import msgspec

SLIGHT = 0.5
FAIR = 1.2
STRONG = 2.5
DECISIVE = 4.0


class Evidence(msgspec.Struct, frozen=True):
    """`weight` is above 0 for evidence that speaks for the cause, and below for what speaks against it."""

    text: str
    weight: float


def supports(weight: float, text: str) -> Evidence:
    """Speaks for the cause."""
    return Evidence(text, weight)


def opposes(weight: float, text: str) -> Evidence:
    """Speaks against the cause."""
    return Evidence(text, -weight)
