"""Whether a trial of this model is supported; checked before anything is touched."""

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from caboose.tensors.shards import fsdp1_handles
from caboose.trials.loss_kind import WAYS, objection


def check(tool: str, model: Any, loss_fn: Any, optimizers: Sequence[Any], *, needs_optimizer: bool) -> None:
    """TypeError for a wrong argument, ValueError with the reason and the way out for an unsupported model."""
    check_arguments(tool, model, loss_fn, optimizers)
    if needs_optimizer and not optimizers:
        raise TypeError(f"{tool}(optimizer=...): it is needed, to make the steps that your run would make")
    reason = _unsupported(model, optimizers)
    if reason:
        raise ValueError(f"{tool}(): {reason}")


def check_arguments(tool: str, model: Any, loss_fn: Any, optimizers: Sequence[Any]) -> None:
    """TypeError for one that is not what it should be."""
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"{tool}(model=...): expected a torch.nn.Module, got {type(model).__name__}")
    if loss_fn is not None and not callable(loss_fn):
        raise TypeError(f"{tool}(loss): got {type(loss_fn).__name__}; {WAYS}")
    reason = objection(loss_fn)
    if reason:
        raise TypeError(f"{tool}(loss): {reason}")
    for optimizer in optimizers:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(f"{tool}(optimizer=...): expected a torch optimizer, got {type(optimizer).__name__}")


def _unsupported(model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> str:
    if fsdp1_handles(model):
        return (
            "FSDP1 keeps flat parameters that cannot be restored safely: use fully_shard, or the model before wrapping"
        )
    if getattr(model, "_use_python_reducer", False):
        return "DDP's python reducer acts in every backward: pass the model before wrapping"
    if any(torch.nn.parameter.is_lazy(tensor) for tensor in itertools.chain(model.parameters(), model.buffers())):
        return "layers are not initialised yet: call model(batch) once first"
    parameters = list(model.parameters())
    if not any(p.requires_grad for p in parameters):
        return "no parameter of the model requires a gradient: is everything frozen?"
    if any(p.device.type == "meta" for p in parameters):
        return "the model is on the meta device: give it memory first, as by model.to_empty(device=...)"
    reason = _sharding(model, parameters)
    for optimizer in optimizers:
        if isinstance(optimizer, torch.optim.LBFGS):
            return reason or "LBFGS evaluates the loss several times per step: use a first-order optimizer here"
        if type(optimizer).__name__ == "ZeroRedundancyOptimizer":
            return reason or "a ZeroRedundancyOptimizer's state is divided over ranks: pass the optimizer inside of it"
    return reason


def _sharding(model: torch.nn.Module, parameters: list[torch.nn.Parameter]) -> str:
    is_fsdp2 = any(hasattr(module, "_get_fsdp_state") for module in model.modules())
    for parameter in parameters:
        placements = getattr(parameter, "placements", None)
        if placements is None:
            continue
        kinds = [type(placement).__name__ for placement in placements]
        dimensions = [placement.dim for placement in placements if hasattr(placement, "dim")]
        if not is_fsdp2 or len(dimensions) > 1 or set(kinds) - {"Shard", "Replicate"}:
            how = ", ".join(kinds)
            return f"a parameter is placed on the ranks as {how} (tensor parallel?); only DDP and FSDP2 are supported"
        if dimensions and dimensions[0] != 0:
            return f"a parameter is sharded along dimension {dimensions[0]}; only FSDP2's default, 0, is supported"
    return ""
