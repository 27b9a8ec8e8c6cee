"""output_shape: whether what the model puts out fits the batch and its targets.

Design
------
The classic that raises no error: predictions (N, 1) against targets (N) broadcast to (N, N), and the loss averages over
pairs that have nothing to do with each other. Shapes alone do not tell, for the loss may bring both to one shape. But a
loss over all pairs does not care which target belongs to which prediction: so the targets change places, and if the
loss stays what it was, they broadcast. Noise is added to the output for it, since equal predictions do not care either.
"""

import math
from typing import Any

import torch
from torch import distributed as dist

from caboose.checklist.flight import Flight, main_tensor
from caboose.checklist.verdict import Verdict, failed, passed, skipped, warned
from caboose.layers import plain_name
from caboose.placement import own
from caboose.trials.batches import fresh, num_samples, parted
from caboose.trials.trial import Trial

ASKS = "Does the output fit the batch and the targets?"
SAME = 1e-4
"""Relative change of the loss that is none: the order of a sum changes it by less."""


def run(flight: Flight) -> Verdict:
    """Looks at the first batch's output."""
    output, targets = flight.output, flight.targets
    both = _broadcast(output, targets)
    ranks = flight.trial.ranks
    is_paired = _cares_for_order(flight) if ranks.anywhere(both is not None) else None
    zeros = _zero_weights(flight)
    if output is None:
        return skipped("the loss does not call the model, or the model returns no tensor")
    shape = "x".join(map(str, output.shape)) or "one number"
    num_bad = int((~torch.isfinite(output)).sum())
    if num_bad:
        return failed(
            shape, f"{num_bad} of {output.numel()} outputs are not finite", "look at the inputs, and at caboose.inspect"
        )
    if both is not None and targets is not None and is_paired is False:
        return failed(
            shape,
            f"output {_of(output)} and targets {_of(targets)} broadcast to {both}: every prediction is "
            "compared with every target",
            "give both one shape, as output.squeeze(-1)",
        )
    classes = flight.given_classes
    if classes is not None and classes > 2 and output.dim() > 1 and classes not in output.shape[1:]:
        return failed(
            shape,
            f"no dimension of {_of(output)} has the {classes} classes",
            "make the last layer as wide as the classes",
        )
    size = num_samples(flight.batch)
    if output.dim() and size and output.shape[0] % size and size not in output.shape:
        return warned(
            shape, f"a batch of {size} gives an output of {_of(output)}", "see that no samples are mixed or lost"
        )
    if output.dim() and output.shape[0] > 1 and output.is_floating_point():
        rows = output.reshape(output.shape[0], -1).float()
        is_same = bool((rows == rows[:1]).all())
        if is_same and zeros:
            return warned(
                shape,
                f"the output is the same for every sample, as {zeros[0]} is all zeros",
                "fine for a last layer that begins with zeros; else initialise it",
            )
        if is_same:
            return failed(shape, "the output is the same for every sample", "see that the inputs reach the last layer")
    return passed(shape, f"{size} samples give {_of(output)}")


def _broadcast(output: torch.Tensor | None, targets: torch.Tensor | None) -> tuple[int, ...] | None:
    """The shape that is neither's, if an operation on both has one."""
    if output is None or targets is None or not targets.is_floating_point() or targets.shape == output.shape:
        return None
    try:
        both = torch.broadcast_shapes(targets.shape, output.shape)  # type: ignore[no-untyped-call]
    except RuntimeError:
        return None
    return tuple(both) if both not in (output.shape, targets.shape) else None


def _cares_for_order(flight: Flight) -> bool | None:
    """Whether the loss changes when the targets change places; None if they cannot be moved."""
    turned = fresh(flight.batch)
    targets = parted(turned, flight.split)[1]
    can_move = targets is not None and targets.dim() > 0 and targets.shape[0] > 1
    if targets is not None and can_move:
        targets.copy_(targets.roll(max(1, targets.shape[0] // 2), 0))
        now, former = parted(turned, flight.split)[1], flight.targets
        can_move = now is not None and former is not None and not torch.equal(now, former)
    trial = flight.trial
    trial.model.eval()
    handle = trial.model.register_forward_hook(_shake)
    try:
        losses = []
        for batch in (flight.batch, turned):
            trial.repeat_noise()
            losses.append(_alone(trial, batch))
    finally:
        handle.remove()
    apart = abs(losses[0] - losses[1])
    return apart > SAME * abs(losses[0]) if can_move and math.isfinite(apart) else None


def _alone(trial: Trial, batch: Any) -> float:
    """This rank's own loss."""
    with torch.no_grad():
        return float(trial.loss(batch))


def _shake(_module: Any, _args: Any, output: Any) -> Any:
    tensor = main_tensor(output)
    if tensor is None or not tensor.is_floating_point() or not tensor.numel():
        return None
    size = float(tensor.abs().mean()) or 1.0
    generator = torch.Generator().manual_seed(0)
    noise = size * torch.rand(tensor.shape, generator=generator).to(tensor.device, tensor.dtype)
    if tensor is output:
        return tensor + noise
    tensor.add_(noise)  # in place: it lies in something that the loss knows how to take apart
    return None


def _zero_weights(flight: Flight) -> list[str]:
    """Weights that are all zeros, over all ranks that hold a part of them."""
    named = [(plain_name(name), p) for name, p in flight.trial.model.named_parameters() if p.dim() > 1]
    with torch.no_grad():
        tops = [float(own(p).abs().max()) if own(p).numel() else 0.0 for _, p in named]
    tops = flight.trial.ranks.total(tops, dist.ReduceOp.MAX).tolist() if named else []
    return [name for (name, _), top in zip(named, tops, strict=True) if top == 0.0]


def _of(tensor: torch.Tensor) -> str:
    return str(tuple(tensor.shape))
