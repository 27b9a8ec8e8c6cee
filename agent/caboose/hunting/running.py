"""Runs one forward and backward of the model again, under the same circumstances.

Design
------
The user's own module is called, inside DDP and torch.compile: no collective is run, so a rank that fails here leaves
no other waiting. The loss is, in this order: what `loss_fn` returns; the model's own (`output.loss`, `output["loss"]`,
or an output of one element); else the sum of the outputs, whose backward passes every operation of the model, but not
the loss, and with other magnitudes. The result names which.

Gradients come from `torch.autograd.grad`: nothing is accumulated, and DDP's reducer, which hooks the accumulation, is
not involved.
"""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from caboose.hunting.capturing import Call, tensors
from caboose.trials.batches import fresh, on_device, parted
from caboose.trials.loss_kind import kind_of, settle

LossFunction = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Again:
    """How a batch is run again."""

    call: Call
    loss_fn: LossFunction | None = None
    batch: Any = None
    """The argument of `loss_fn`; None if only the model's own arguments are known."""

    @property
    def is_of_outputs(self) -> bool:
        """Whether the loss takes (outputs, targets)."""
        return kind_of(self.loss_fn) == "criterion"


@dataclass(frozen=True, slots=True)
class RerunResult:
    """The outputs."""

    outputs: tuple[torch.Tensor, ...]
    loss: torch.Tensor | None
    """None if there was none: then the sum of the outputs is differentiated."""
    root: torch.Tensor | None
    """The start of the backward."""


def forward(model: torch.nn.Module, again: Again, device: torch.device) -> RerunResult:
    """The forward and the loss."""
    call = again.call
    outputs: Any
    with circumstances(model, call, device):
        if again.loss_fn is not None and not again.is_of_outputs:
            with _watching(model) as seen:
                loss = again.loss_fn(model, fresh(again.batch))
            outputs = seen
        else:
            args, kwargs = on_device(fresh(call.args), device), on_device(fresh(call.kwargs), device)
            outputs = model(*args, **kwargs)
            loss = own_loss(outputs) if again.loss_fn is None else _criterion(again, outputs, device)
    found = tuple(tensor for tensor in tensors(_opened(outputs)) if tensor.is_floating_point())
    if isinstance(loss, torch.Tensor) and loss.numel() != 1:
        loss = loss.mean()
    root = loss if isinstance(loss, torch.Tensor) else _sum(found)
    return RerunResult(found, loss if isinstance(loss, torch.Tensor) else None, root)


def _criterion(again: Again, outputs: Any, device: torch.device) -> Any:
    targets = parted(again.batch)[1]
    if targets is None:
        raise TypeError("the loss is a criterion, and the batch has no targets that could be found")
    assert again.loss_fn is not None, "only called with one"
    return again.loss_fn(outputs, targets.to(device))


def settled(model: torch.nn.Module, again: Again, device: torch.device) -> Again:
    """The same with a loss of known kind: one whose arguments say nothing is tried both ways."""
    loss_fn = again.loss_fn
    if loss_fn is None or kind_of(loss_fn) != "unknown":
        return again

    def of_model() -> Any:
        return loss_fn(model, fresh(again.batch))

    def of_outputs() -> Any:
        args, kwargs = on_device(fresh(again.call.args), device), on_device(fresh(again.call.kwargs), device)
        return _criterion(again, model(*args, **kwargs), device)

    with torch.no_grad(), circumstances(model, again.call, device):
        is_criterion = settle("hunt_nan", loss_fn, of_model, of_outputs) == "criterion"

    def criterion(output: Any, target: Any) -> Any:
        return loss_fn(output, target)

    def of_batch(model: Any, batch: Any) -> Any:
        return loss_fn(model, batch)

    return replace(again, loss_fn=criterion if is_criterion else of_batch)


def backward(model: torch.nn.Module, root: torch.Tensor) -> dict[str, torch.Tensor]:
    """The gradients of the parameters that have one, by name; nothing is accumulated."""
    named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    found = torch.autograd.grad(root, list(named.values()), allow_unused=True)
    return {name: gradient for name, gradient in zip(named, found, strict=True) if gradient is not None}


@contextlib.contextmanager
def circumstances(model: torch.nn.Module, call: Call, device: torch.device) -> Any:
    """Random numbers, precision and mode of that forward; gradients are on."""
    if call.random is not None:
        cpu, on_it = call.random
        torch.set_rng_state(cpu)
        if on_it is not None:
            torch.get_device_module(device.type).set_rng_state(on_it)
    if model.training is not call.is_training:
        model.train(call.is_training)
    is_mixed = call.autocast is not None
    with torch.enable_grad(), torch.autocast(device.type, dtype=call.autocast, enabled=is_mixed):
        yield


@contextlib.contextmanager
def _watching(model: torch.nn.Module) -> Any:
    """Records the model's outputs, whoever calls it."""
    seen: list[Any] = []
    handle = model.register_forward_hook(lambda _module, _args, output: seen.append(_opened(output)))
    try:
        yield seen
    finally:
        handle.remove()


def own_loss(outputs: Any) -> torch.Tensor | None:
    """The loss that a model computes itself; None if it does not."""
    if isinstance(outputs, torch.Tensor):
        return outputs if outputs.numel() == 1 and outputs.requires_grad else None
    found = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
    return found if isinstance(found, torch.Tensor) and found.requires_grad else None


def _opened(outputs: Any) -> Any:
    """Outputs as a tree: an object as its attributes."""
    if isinstance(outputs, torch.Tensor | Mapping | tuple | list) or not hasattr(outputs, "__dict__"):
        return outputs
    return dict(vars(outputs))


def _sum(outputs: tuple[torch.Tensor, ...]) -> torch.Tensor | None:
    parts = [tensor.float().sum() for tensor in outputs if tensor.requires_grad]
    return torch.stack(parts).sum() if parts else None
