"""chance_level: whether the first loss is that of guessing.

Design
------
Untrained weights know nothing, so cross entropy begins near ln(classes). Well above it the outputs are confidently
wrong (the last layer begins too large); well below, the model was trained before, or the answer is in the input. A
mean squared error begins near the variance of the targets, which the criterion itself gives, with the mean as the
prediction; a loss function of the user cannot be evaluated so. Targets far from zero begin far above it and can still
be learned: that is a warning. So is a loss that is not the cross entropy of the output, but has several terms or a
factor. No loss of classes is below zero; but integers beside an output may be no classes (a label that the loss
ignores), so without certainty that is a warning, too.
"""

import math

import torch

from caboose.checklist.flight import Flight, number
from caboose.checklist.likelihood import kind_of_loss
from caboose.checklist.verdict import CheckResult, failed, passed, skipped, warned
from caboose.trials.batches import doubled

ASKS = "Is the first loss what guessing costs?"
LOW, HIGH, ABSURD = 0.5, 1.5, 4.0
"""Against chance."""


def run(flight: Flight) -> CheckResult:
    """Compares the first batches' loss with chance."""
    chance, what = _chance(flight)
    if flight.trial.ranks.anywhere(chance is None) or chance is None:
        what = what if chance is None else "what guessing costs is not known on all ranks"
        return skipped(what, "pass num_classes= if the targets are classes")
    trial = flight.trial
    trial.train()
    loss = math.fsum(trial.measure(batch) for batch in flight.batches) / len(flight.batches)
    measured = f"{number(loss)} vs {number(chance)}"
    if not math.isfinite(loss):
        return failed(measured, f"the loss is {loss} before any step", "look at the inputs, and at caboose.inspect")
    share = loss / chance
    if share > HIGH and _is_summed(flight):
        return warned(
            measured,
            f"the loss is {share:.1f} times chance ({what}), and twice that for the batch taken twice: it is a sum",
            "use reduction='mean', or the learning rate depends on the batch size",
        )
    if share > HIGH and flight.num_classes is None:
        return warned(
            measured,
            f"the loss is {share:.1f} times what {what} would cost",
            "standardise the targets, or begin with the last layer's bias at their mean",
        )
    if share > ABSURD and kind_of_loss(flight) != "cross entropy":
        return warned(
            measured,
            f"the loss is {share:.1f} times chance ({what}), and is not the cross entropy of the output alone",
            "fine for several terms or a factor; else begin with a smaller last layer",
        )
    if share > ABSURD:
        return failed(
            measured,
            f"the loss is {share:.1f} times chance ({what})",
            "begin with a smaller last layer; see that logits are not passed through softmax twice, or targets shifted",
        )
    if share > HIGH:
        return warned(
            measured,
            f"the loss is {share:.2f} times chance ({what})",
            "begin with a smaller last layer, or normalise its input",
        )
    below = _below(flight, loss, measured) if share < LOW and flight.num_classes is not None else None
    if below is not None:
        return below
    if share < LOW:
        return warned(
            measured,
            f"the loss is {share:.2f} of chance ({what}): it knows something already",
            "fine if the weights are trained; else look for the target among the inputs",
        )
    return passed(measured, f"{share:.2f} times chance ({what})")


def _is_summed(flight: Flight) -> bool:
    """Whether the batch taken twice costs twice as much; a mean does not."""
    flight.trial.model.eval()
    once, twice = (flight.trial.measure(batch) for batch in (flight.batch, doubled(flight.batch)))
    return 1.9 < twice / once < 2.1


def _below(flight: Flight, loss: float, measured: str) -> CheckResult | None:
    """The verdict on a loss well below chance, if it cannot be one of classes; called on all ranks."""
    kind = kind_of_loss(flight)
    if kind == "bare":
        return failed(
            measured,
            "the loss is minus the output of the right class, and the outputs are no log-probabilities",
            "put log_softmax before NLLLoss, or use CrossEntropyLoss, which takes what the last layer gives",
        )
    if loss >= 0:
        return None
    if kind == "negated" or flight.are_classes:
        return failed(measured, "no cross entropy is below zero", "NLLLoss wants log_softmax, or the sign is wrong")
    return warned(
        measured,
        "the loss is below zero, as no cross entropy is",
        "fine if the targets are no classes; else NLLLoss wants log_softmax, or the sign is wrong",
    )


def _chance(flight: Flight) -> tuple[float | None, str]:
    classes, targets = flight.num_classes, flight.targets
    if targets is not None and targets.is_floating_point() and classes is None:
        return _constant(flight, targets)
    if classes is None:
        return None, "the number of classes is not known"
    return math.log(max(2, classes)), f"ln {max(2, classes)}"


def _constant(flight: Flight, targets: torch.Tensor) -> tuple[float | None, str]:
    """The criterion's value for the mean of the targets."""
    output = flight.output
    can_ask = flight.trial.is_criterion and output is not None and output.shape == targets.shape
    if flight.trial.ranks.anywhere(not can_ask) or output is None:
        return None, "the targets are no classes, and the cost of guessing cannot be computed for this loss function"
    guess = targets.mean(dim=0, keepdim=True).expand_as(targets) if targets.dim() else targets
    with torch.no_grad():
        asked = flight.trial.ranks.together(
            lambda: flight.loss_fn(guess.to(output.device, output.dtype), targets.to(output.device))
        )
    chance = float(flight.trial.ranks.mean(float(asked)))
    return (
        (chance, "the targets' mean") if chance > 0 and math.isfinite(chance) else (None, "guessing costs nothing here")
    )
