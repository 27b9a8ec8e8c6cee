"""output_shape: whether the model's output fits the batch and its targets.

Design
------
The classic that raises no error: predictions (N, 1) against targets (N) broadcast to (N, N), and the loss averages
over unrelated pairs. Shapes alone do not show it, since the loss may bring both to one shape. So the loss is evaluated
with outputs spread over the range of the targets: far from them an absolute error does not depend on order either. A
loss over all pairs does not change when the targets are permuted, and the cost of the first half of the predictions
depends on the targets of the second half. Both must hold: a loss that weights by all targets does the latter, and one
that maps the output out of the targets' range the former.
"""

from typing import Any

import torch
from torch import distributed as dist

from caboose.checklist.flight import Flight, main_tensor
from caboose.checklist.verdict import CheckResult, failed, passed, skipped, warned
from caboose.observe.layers import plain_name
from caboose.tensors.placement import own
from caboose.trials.batches import fresh, num_samples, parted

ASKS = "Does the output fit the batch and the targets?"
SAME = 1e-4
"""The relative change of the loss that counts as none: the order of a sum changes it by less."""


def run(flight: Flight) -> CheckResult:
    """Checks the first batch's output."""
    output, targets = flight.output, flight.targets
    both = _common_shape(flight)
    is_broadcast = flight.trial.ranks.anywhere(both is not None) and _is_broadcast(flight)
    zeros = _zero_weights(flight)
    if output is None:
        return skipped("the loss does not call the model, or the model returns no tensor")
    shape = "x".join(map(str, output.shape)) or "one number"
    num_bad = int((~torch.isfinite(output)).sum())
    if num_bad:
        return failed(
            shape, f"{num_bad} of {output.numel()} outputs are not finite", "look at the inputs, and at caboose.inspect"
        )
    if both is not None and targets is not None and is_broadcast:
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


def _common_shape(flight: Flight) -> tuple[int, ...] | None:
    """The broadcast shape of output and targets, if it is neither's; None for classes."""
    output, targets = flight.output, flight.targets
    if output is None or targets is None or targets.shape == output.shape:
        return None
    if flight.num_classes is not None and not targets.is_floating_point():
        return None
    try:
        both = torch.broadcast_shapes(targets.shape, output.shape)  # type: ignore[no-untyped-call]
    except RuntimeError:
        return None
    return tuple(both) if both not in (output.shape, targets.shape) else None


def _is_broadcast(flight: Flight) -> bool:
    """Whether this rank's loss compares every prediction with every target; False also if it cannot be evaluated."""
    try:
        straight, turned = _cost(flight), _cost(flight, is_turned=True)
        low, right, left, high = (_cost(flight, halves=halves) for halves in ((0, 0), (0, 1), (1, 0), (1, 1)))
    except Exception:  # noqa: BLE001 - the user's loss, on an output that the model did not give
        return False
    is_mixed = abs((high - left) - (right - low)) > SAME * max(map(abs, (low, right, left, high)))
    return is_mixed and abs(straight - turned) <= SAME * abs(straight)


def _cost(flight: Flight, *, is_turned: bool = False, halves: tuple[int, int] | None = None) -> float:
    """This rank's loss of outputs over the targets' range.

    `is_turned`: the targets are permuted. `halves`: the first half of the outputs and the second half of the targets
    are at the lowest (0) or the highest (1) target.
    """
    batch = fresh(flight.batch)
    targets = parted(batch, flight.split)[1]
    low, span = _range(targets)
    if targets is not None and targets.dim():
        middle = len(targets) // 2
        if is_turned:
            targets.copy_(targets.roll(max(1, middle), 0))
        if halves is not None:
            targets[middle:] = low + halves[1] * span

    def shake(_module: Any, _args: Any, output: Any) -> Any:
        tensor = main_tensor(output)
        if tensor is None or not tensor.is_floating_point() or not tensor.dim():
            return None
        places = torch.rand(tensor.shape, generator=torch.Generator().manual_seed(0))
        if halves is not None:
            places[: len(places) // 2] = halves[0]
        spread = (low + span * places).to(tensor.device, tensor.dtype)
        if tensor is output:
            return spread
        tensor.copy_(spread)  # in place: it is inside an object that the loss unpacks
        return None

    trial = flight.trial
    trial.model.eval()
    trial.repeat_noise()
    handle = trial.model.register_forward_hook(shake)
    try:
        with torch.no_grad():
            return float(trial.loss(batch))
    finally:
        handle.remove()


def _range(targets: torch.Tensor | None) -> tuple[float, float]:
    """The lowest target, and the distance of the highest from it."""
    known = torch.zeros(0) if targets is None else targets.detach()[torch.isfinite(targets)].double()
    return (float(known.min()), float(known.max() - known.min())) if known.numel() else (0.0, 1.0)


def _zero_weights(flight: Flight) -> list[str]:
    """Weights that are all zero, over all ranks that hold a part of them."""
    named = [(plain_name(name), p) for name, p in flight.trial.model.named_parameters() if p.dim() > 1]
    with torch.no_grad():
        tops = [float(own(p).abs().max()) if own(p).numel() else 0.0 for _, p in named]
    tops = flight.trial.ranks.total(tops, dist.ReduceOp.MAX).tolist() if named else []
    return [name for (name, _), top in zip(named, tops, strict=True) if top == 0.0]


def _of(tensor: torch.Tensor) -> str:
    return str(tuple(tensor.shape))
