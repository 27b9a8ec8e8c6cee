"""loss_falls: whether one step of the optimizer lowers the loss of the batch that it was made on."""

import math

import torch

from caboose.checklist.flight import Flight, number
from caboose.checklist.verdict import CheckResult, failed, passed, skipped, warned
from caboose.tensors.placement import own
from caboose.trials.orientation import UPDATE_RATIO
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
    weights = [own(p).detach().clone() for p in trial.parameters if p.requires_grad]
    trial.step()
    update = _update_ratio(flight, weights)
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
    says = f"one step takes {fall / abs(before):.2%} off the loss" if before else "the loss fell"
    return passed(measured, f"{says}, by an update of {number(update)} of the weights ({UPDATE_RATIO:g} is usual)")


def _update_ratio(flight: Flight, before: list[torch.Tensor]) -> float:
    """The length of the step over that of the weights, of this rank's part."""
    after = [own(p).detach() for p in flight.trial.parameters if p.requires_grad]
    with torch.no_grad():
        steps = sum(float((new - old).double().square().sum()) for new, old in zip(after, before, strict=True))
        sizes = sum(float(old.double().square().sum()) for old in before)
    return math.sqrt(steps / sizes) if sizes else math.inf
