"""overfits: whether one batch can be learned by heart; `caboose.overfit_one_batch` as a check."""

from caboose.checklist.flight import Flight
from caboose.checklist.verdict import Verdict, skipped
from caboose.trials.overfit import overfit

ASKS = "Can it learn one batch by heart?"


def run(flight: Flight) -> Verdict:
    """Trains on the first batch."""
    if not flight.trial.optimizers:
        return skipped("no optimizer was given", "pass optimizer=")
    if not flight.overfit_steps:
        return skipped("overfit_steps is 0")
    found = overfit(flight.trial, flight.batch, flight.overfit_steps, flight.bar)
    return Verdict(found.verdict, f"-{max(0.0, found.gone):.0%}", found.says, found.fix)
