"""modes: whether the model is in training mode, and whether eval mode is free of noise.

Design
------
`F.dropout(x)` drops in eval mode too, unless `training=self.training` is passed. So the model is called twice in eval
mode with its inputs of the first batch, with random numbers continuing in between: a difference is noise that
validation will have. Only the model is called again: noise of the loss (diffusion, masked tokens) is intended. Dropout
that is active in eval mode is an error; other noise may be the model's nature, as of a variational autoencoder.
Kernels that add in any order differ by little, which is ignored.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from caboose.checklist.flight import Flight, main_tensor
from caboose.checklist.verdict import CheckResult, failed, passed, warned
from caboose.trials.batches import fresh

ASKS = "Is it in training mode, and eval mode free of noise?"
NOISY = (torch.nn.modules.dropout._DropoutNd, torch.nn.modules.batchnorm._BatchNorm)
FIX = "use torch.nn.Dropout, or F.dropout(x, training=self.training)"
MAX_CALLS = 4
"""Calls of the model by one loss that are repeated."""
SAME = 1e-3
"""Relative to the largest output: the difference at which two outputs of the same call count as equal."""


def run(flight: Flight) -> CheckResult:
    """Checks the modes as found, then two evaluations."""
    trial = flight.trial
    trial.model.eval()
    was_evaluated, is_noisy, is_dropping = _evaluated(flight)
    if is_noisy and is_dropping:
        return failed("noisy eval", "in eval mode dropout is at work: the same batch gives different outputs", FIX)
    if is_noisy:
        return warned(
            "noisy eval",
            "in eval mode the model draws random numbers: the same batch gives different outputs",
            "fine for a model that samples; else leave the noise out where self.training is false",
        )
    measured = "eval" if not flight.modes[""] else "train"
    if not flight.modes[""]:
        return warned(measured, "the model is in eval mode", "call model.train() before training")
    noisy = {name for name, module in trial.model.named_modules() if isinstance(module, NOISY)}
    still = sorted(name for name in noisy if not flight.modes[name])
    if still:
        return warned(
            f"{len(still)} in eval",
            f"{len(still)} of {len(noisy)} dropout and batch norm layers are in eval mode, as {still[0]}",
            "call model.train(), unless they are frozen on purpose",
        )
    return passed(measured, "in training mode; eval mode repeats itself" if was_evaluated else "in training mode")


def _evaluated(flight: Flight) -> tuple[bool, bool, bool]:
    """Whether a call could be repeated, whether its outputs differ, and whether dropout was active."""
    trial = flight.trial
    calls: list[tuple[Any, Any]] = []

    def see(_module: Any, args: Any, kwargs: Any) -> None:
        if len(calls) < MAX_CALLS:
            calls.append((fresh(args), fresh(kwargs)))

    handle = trial.model.register_forward_pre_hook(see, with_kwargs=True)
    try:
        with torch.no_grad():
            trial.loss(flight.batch)
    finally:
        handle.remove()
    is_noisy = False
    with torch.no_grad(), _Dropouts() as dropouts:
        for args, kwargs in calls[: trial.ranks.least(len(calls))]:
            first, second = (
                trial.ranks.together(lambda args=args, kwargs=kwargs: trial.model(*fresh(args), **fresh(kwargs)))  # type: ignore[misc]
                for _ in range(2)
            )
            is_noisy |= _differ(main_tensor(first), main_tensor(second))
    return bool(calls), is_noisy, dropouts.is_active


def _differ(first: torch.Tensor | None, second: torch.Tensor | None) -> bool:
    if first is None or second is None or first.shape != second.shape or not first.numel():
        return False
    if not first.is_floating_point():
        return not torch.equal(first, second)
    one, other = first.float(), second.float()
    if not bool(torch.isfinite(one).all()):
        return False  # reported by other checks
    room = max(SAME, 8 * torch.finfo(first.dtype).eps)
    return bool((one - other).abs().max() > room * one.abs().max())


class _Dropouts(TorchFunctionMode):
    """Records whether a dropout function drops."""

    is_active = False

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "scaled_dot_product_attention":
            self.is_active |= float(kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0)) > 0
        elif "dropout" in name:
            share = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
            is_training = kwargs.get("training", kwargs.get("train", args[2] if len(args) > 2 else True))
            self.is_active |= bool(is_training) and float(share) > 0
        return func(*args, **kwargs)
