"""initial_weights: whether each weight matrix has the standard deviation of a usual initialisation.

Design
------
He, Xavier, LeCun and torch's own default are within a factor of about five of each other; language models use 0.02 for
any width. Deep ones scale the ends of residual branches by the root of their number: the number of weights bounds that.
What is outside of all of them by a factor of three is reported. Trained weights have a larger deviation than at their
beginning, so this check is about untrained models only.
"""

import math

import torch

from caboose.checklist.flight import Flight, number
from caboose.checklist.verdict import CheckResult, passed, skipped, warned
from caboose.observe.layers import plain_name
from caboose.tensors.placement import Placements, own

ASKS = "Are the weights as wide as He or Xavier make them?"
ROOM = 3.0
KINDS = (torch.nn.Linear, torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d, torch.nn.MultiheadAttention)
LANGUAGE_MODELS = 0.02


def run(flight: Flight) -> CheckResult:
    """Compares the standard deviation of each weight with what the usual initialisations give."""
    odd: list[tuple[float, str, float, float]] = []
    zeros: list[str] = []
    weights = [
        (plain_name(f"{module_name}.{name}".lstrip(".")), module, weight)
        for module_name, module in flight.trial.model.named_modules()
        for name, weight in module.named_parameters(recurse=False)
        if (isinstance(module, KINDS) or is_conv1d(module)) and weight.dim() > 1 and weight.requires_grad
    ]
    looked = len(weights)
    for full, module, weight in weights:
        std = _std(flight, weight)
        fan_in, fan_out = math.prod(weight.shape[1:]), weight.shape[0] * math.prod(weight.shape[2:])
        if is_conv1d(module):
            fan_in, fan_out = fan_out, fan_in
        he, xavier, default = math.sqrt(2 / fan_in), math.sqrt(2 / (fan_in + fan_out)), 1 / math.sqrt(3 * fan_in)
        if std == 0.0:
            zeros.append(full)
        least = min(xavier, default, LANGUAGE_MODELS / math.sqrt(looked), he)
        low, high = least / ROOM, max(he, xavier, LANGUAGE_MODELS) * ROOM
        if std and not low <= std <= high:
            odd.append((max(std / high, low / std), full, std, he))
    if not looked:
        return skipped("there are no linear or convolutional weights")
    if odd:
        _, name, std, he = max(odd)
        return warned(
            f"{number(std / he)} of He",
            f"{name} has a std of {number(std)}, He's is {number(he)}"
            + (f"; {len(odd) - 1} more" if len(odd) > 1 else ""),
            f"torch.nn.init.kaiming_normal_({name}), or Xavier for tanh and sigmoid; fine if its size is meant",
        )
    if zeros:
        return warned(
            f"{len(zeros)} zero",
            f"{zeros[0]} is all zeros" + (f", and {len(zeros) - 1} more" if len(zeros) > 1 else ""),
            "fine at the end of a residual branch; elsewhere its units all learn the same",
        )
    return passed(f"{looked} weights", f"all within {ROOM:g} times of He, Xavier or the defaults")


def is_conv1d(module: torch.nn.Module) -> bool:
    """Whether it is transformers' linear layer of GPT-2, whose weight has the inputs first."""
    return type(module).__name__ == "Conv1D" and not isinstance(module, KINDS)


@torch.no_grad()
def _std(flight: Flight, weight: torch.Tensor) -> float:
    """Of the complete weight, over all ranks that hold a part of it."""
    local = own(weight).detach().double()
    sums = [float(local.sum()), float(local.square().sum())]
    trial = flight.trial
    if trial.is_sharded:
        replicas = Placements(trial.model, trial.ranks.num).of(weight).replicas
        sums = (trial.ranks.total(sums) / replicas).tolist()
    mean = sums[0] / weight.numel()
    return math.sqrt(max(0.0, sums[1] / weight.numel() - mean**2))
