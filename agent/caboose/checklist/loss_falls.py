"""loss_falls: whether one step of the optimizer lowers the loss of the batch that it was made on."""

import math

from caboose.checklist.flight import Flight, number
from caboose.checklist.verdict import CheckResult, failed, passed, skipped, warned
from caboose.trials.overfit import raise_lr

ASKS = "Does one step lower the loss?"
SMALL = 1e-6
"""The relative change that counts as none."""


def run(flight: Flight) -> CheckResult:
    """One step, then the same batch again with the same dropout."""
    trial = flight.trial
    if not trial.optimizers:
        return skipped("no optimizer was given", "pass optimizer=")
    trial.train()
    raise_lr(trial)
    trial.repeat_noise()
    before = trial.backward(flight.batch)
    trial.step()
    trial.repeat_noise()
    after = trial.measure(flight.batch)
    measured = f"{number(before)} to {number(after)}"
    if not (math.isfinite(before) and math.isfinite(after)):
        return failed(
            measured,
            f"the loss went from {number(before)} to {number(after)}",
            "look at caboose.inspect(model, loss_fn, batch)",
        )
    fall = before - after
    if abs(fall) <= SMALL * abs(before):
        return failed(
            measured,
            "one step changes nothing",
            "see that the optimizer holds this model's parameters, that its rate is not 0, and the loss not detached",
        )
    if fall < 0:
        return warned(
            measured,
            f"one step raises the loss by {-fall / abs(before):.1%}" if before else "one step raises the loss",
            "lower the learning rate; caboose.find_lr suggests one",
        )
    return passed(measured, f"one step takes {fall / abs(before):.2%} off the loss" if before else "the loss fell")
