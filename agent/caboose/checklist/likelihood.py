"""Recognises the loss of output and class targets: cross entropy, or what was meant to be.

Design
------
The loss function itself cannot be read, but its value can be compared with torch's own functions on the same output.
Cross entropy may have smoothing or weights, so a few per cent are allowed; minus the right output (NLLLoss on what is
no log-probability) and minus the cross entropy are only recognised if they agree exactly.
"""

import math
from typing import Literal

import torch
import torch.nn.functional as F

from caboose.checklist.flight import Flight
from caboose.trials.loss_kind import criterion_of

Kind = Literal["cross entropy", "bare", "negated", "unknown"]
ABOUT, EXACT = 0.05, 1e-3
"""Relative differences of two losses."""
NORMALISED = 0.05
"""How far from 1 probabilities may sum, in half precision."""


def kind_of_loss(flight: Flight) -> Kind:
    """`bare`: minus the output of the right class, which is no log-probability. Called on all ranks."""
    trial, targets = flight.trial, flight.targets
    trial.rewind()
    trial.train()
    outputs = flight.outputs_of(flight.batch)
    trial.rewind()
    trial.train()
    loss = trial.measure(flight.batch)
    trial.rewind()
    entropies, likelihoods, sums = [], [], []
    for is_shifted in (False, True):
        entropy = likelihood = total = math.nan
        if outputs and targets is not None:
            entropy, likelihood, total = _measured(flight, outputs[0], targets, is_shifted=is_shifted)
        entropies.append(trial.ranks.mean(entropy))
        likelihoods.append(trial.ranks.mean(likelihood))
        sums.append(trial.ranks.mean(total))
    if any(_is_near(value, loss, ABOUT) for value in entropies):
        return "cross entropy"
    for likelihood, total in zip(likelihoods, sums, strict=True):
        if (_is_near(likelihood, loss, EXACT) or _is_nll(flight)) and abs(total - 1) > NORMALISED:
            return "bare"
    return "negated" if any(_is_near(-value, loss, EXACT) for value in entropies) else "unknown"


def _measured(
    flight: Flight, output: torch.Tensor, targets: torch.Tensor, *, is_shifted: bool
) -> tuple[float, float, float]:
    """Cross entropy, NLL loss, and what the outputs of the classes sum to as log-probabilities; NaN if they cannot."""
    targets = targets.to(output.device)
    if is_shifted:  # as language models do
        if targets.dim() != 2 or output.shape[:2] != targets.shape:
            return math.nan, math.nan, math.nan
        output, targets = output[:, :-1], targets[:, 1:]
    width = flight.num_classes or 0
    if output.dim() == targets.dim() + 1 and output.shape[1] == width and output.shape[2:] == targets.shape[1:]:
        output = output.movedim(1, -1)
    if output.shape[-1] != width or output.numel() != targets.numel() * width:
        return math.nan, math.nan, math.nan
    flat = targets.reshape(-1).long()
    flat = flat.where((flat >= 0) & (flat < width), -100)
    rows = output.reshape(-1, width).float()
    return float(F.cross_entropy(rows, flat)), float(F.nll_loss(rows, flat)), float(rows.exp().sum(-1).mean())


def _is_near(value: float, loss: float, share: float) -> bool:
    return abs(value - loss) < share * abs(loss)


def _is_nll(flight: Flight) -> bool:
    criterion, _ = criterion_of(flight.loss_fn)
    return isinstance(criterion, torch.nn.NLLLoss) or criterion is F.nll_loss
