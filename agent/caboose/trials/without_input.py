"""What a loss is where the model does not see its input, and where it knows every target: the scale of learning.

Design
------
A loss that falls proves little: a model that ignores its input can learn the targets' mean, and where these are far
from zero that alone is almost all of the loss. So two losses of the same batch are computed without the model: the
lowest for an output that is the same for all samples, and the lowest for any output at all. They are found by
optimising the output itself, in place of the model's: the model's `forward` returns that tensor meanwhile, so that
this works for a loss of any form. What remains at the second is no fault of the model: label smoothing, say.

Not known where the output is not one tensor, where the loss is computed inside the model, for one sample, or where
the forward needs other ranks.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from caboose.trials.batches import num_samples, parted
from caboose.trials.trial import Trial

NUM_ITERATIONS = 40
MIN_ROOM = 1e-3
"""The least distance between the two, as a share of the loss, from which they say something."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Losses of one batch without the model; the mean over the ranks."""

    constant: float
    """The lowest for one output for all samples."""
    lowest: float
    """The lowest for any output."""

    @property
    def has_room(self) -> bool:
        """Whether they are so far apart that a loss can be placed between them."""
        return self.constant - self.lowest > MIN_ROOM * max(abs(self.constant), 1e-12)


def bounds(trial: Trial, batch: Any) -> Bounds | None:
    """Both, or None where they are not known; the trial is rewound."""
    found: Bounds | None = None
    if not trial.meets_inside:
        with contextlib.suppress(Exception):  # the user's loss, with an output that no model made
            found = _bounds(trial, batch)
        trial.rewind()
    if trial.ranks.anywhere(found is None) or found is None:
        return None
    return Bounds(trial.ranks.mean(found.constant), trial.ranks.mean(found.lowest))


def _bounds(trial: Trial, batch: Any) -> Bounds | None:
    output = _output(trial, batch)
    if output is None or output.dim() == 0 or output.shape[0] != num_samples(batch) or output.shape[0] < 2:
        return None
    targets = parted(batch, trial.split)[1]
    starts = [output.mean(dim=0, keepdim=True)]
    if targets is not None and targets.is_floating_point() and targets.shape == output.shape:
        starts.append(targets.to(output).mean(dim=0, keepdim=True))
        starts.append(targets.to(output).median(dim=0, keepdim=True).values)
    constant = min(_lowest(trial, batch, start, output) for start in starts)
    whole = [start.expand_as(output).contiguous() for start in starts]
    if len(starts) > 1 and targets is not None:
        whole.append(targets.to(output))
    lowest = min(_lowest(trial, batch, start, output) for start in whole)
    if not (math.isfinite(constant) and math.isfinite(lowest)):
        return None
    return Bounds(constant, min(constant, lowest))


def _output(trial: Trial, batch: Any) -> torch.Tensor | None:
    """What the model puts out in the only call that the loss makes of it; None if it is not one tensor."""
    seen: list[Any] = []
    handle = trial.model.register_forward_hook(lambda _module, _args, output: seen.append(output))
    try:
        with torch.no_grad():
            trial.local_loss(batch)
    finally:
        handle.remove()
    output = seen[0] if len(seen) == 1 else None
    return output.detach().float() if isinstance(output, torch.Tensor) and output.is_floating_point() else None


def _lowest(trial: Trial, batch: Any, start: torch.Tensor, like: torch.Tensor) -> float:
    """The lowest loss that is found for an output of this form."""
    free = start.detach().clone().requires_grad_()
    optimizer = torch.optim.LBFGS([free], max_iter=NUM_ITERATIONS, line_search_fn="strong_wolfe")
    losses: list[float] = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        with torch.enable_grad():
            loss = trial.local_loss(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(float(loss.detach()))
        return loss

    with _returning(trial.model, lambda: free.expand_as(like)):
        optimizer.step(closure)  # type: ignore[no-untyped-call,unused-ignore]
    if free.grad is None:
        raise ValueError("the loss does not depend on the output")
    return min(loss for loss in losses if math.isfinite(loss))


@contextlib.contextmanager
def _returning(model: torch.nn.Module, make: Callable[[], Any]) -> Iterator[None]:
    """The model's forward is replaced."""
    before: Mapping[str, Any] = dict(vars(model))
    vars(model)["forward"] = lambda *_args, **_kwargs: make()
    try:
        yield
    finally:
        if "forward" in before:
            vars(model)["forward"] = before["forward"]
        else:
            vars(model).pop("forward", None)
