"""overfits: whether one batch can be memorised; `caboose.overfit_one_batch` as a check.

A loss that was recognised as one of classes has learned nothing if it ends below zero; others may (likelihoods of
measurements, similarities).
"""

from caboose.checklist.flight import Flight
from caboose.checklist.likelihood import kind_of_loss
from caboose.checklist.verdict import CheckResult, failed, skipped
from caboose.trials.overfit import Overfit, overfit

ASKS = "Can it learn one batch by heart?"
BELOW = -1e-3
"""A loss that is below zero by more than rounding."""


def run(flight: Flight) -> CheckResult:
    """Trains on the first batch."""
    if not flight.trial.optimizers:
        return skipped("no optimizer was given", "pass optimizer=")
    if not flight.overfit_steps:
        return skipped("overfit_steps is 0")
    found = overfit(flight.trial, flight.batch, flight.overfit_steps, flight.bar)
    if found.losses[-1] < BELOW and flight.num_classes is not None and _is_of_classes(flight, found):
        says = f"{found.says}: no cross entropy is below zero"
        return failed(f"{found.losses[-1]:.3g}", says, "NLLLoss wants log_softmax, or the sign is wrong")
    return CheckResult(found.verdict, f"-{max(0.0, found.gone):.0%}", found.says, found.fix)


def _is_of_classes(flight: Flight, found: Overfit) -> bool:
    """Whether the loss is known to be one, or began below zero on what are certainly classes."""
    return kind_of_loss(flight) != "unknown" or (found.losses[0] < BELOW and flight.are_classes)
