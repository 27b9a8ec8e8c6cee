"""An optimizer's state by the names of its parameters: captured for saving, and restored in place.

Design
------
Plain, DDP and FSDP2 parameters carry their own state (FSDP2's as DTensors, which torch reshards), so it is read from
and written to `optimizer.state` directly. torch's own set_optimizer_state_dict would take a step of an optimizer
without state, with all its hooks, and cast the state to the parameters' type. FSDP1 keeps shards of flat buffers,
which only torch can name, so its API is used there; without state, it takes that step, with a rate of 0.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

from caboose.checkpoints import plain
from caboose.checkpoints.storage import Index
from caboose.observe.layers import plain_name
from caboose.tensors.shards import is_fsdp1


class OptimizerParts:
    """The optimizers of one model."""

    def __init__(self, model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._model = model
        self._optimizers = optimizers
        for optimizer in optimizers:
            if hasattr(optimizer, "consolidate_state_dict"):
                raise ValueError(
                    f"{type(optimizer).__name__} keeps its state in pieces that only it can put together, so it cannot "
                    "be saved; use FSDP2 (fully_shard) to shard the optimizer's state, or save checkpoints yourself"
                )
        self._is_fsdp1 = is_fsdp1(model)
        self._names = {id(p): plain_name(name) for name, p in model.named_parameters()}

    def capture(self, tensors: dict[str, torch.Tensor]) -> plain.Tree:
        """Settings and structure of all optimizers; adds their tensors, not copied, to `tensors`."""
        return [self._capture(i, optimizer, tensors) for i, optimizer in enumerate(self._optimizers)]

    def _capture(self, i: int, optimizer: torch.optim.Optimizer, tensors: dict[str, torch.Tensor]) -> plain.Tree:
        if self._is_fsdp1:
            found: dict[str, Any] = dict(get_optimizer_state_dict(self._model, optimizer))
            state, groups = found["state"], found["param_groups"]
        else:
            state, groups = {}, []
            for g, group in enumerate(optimizer.param_groups):
                names = [self._name(g, n, p) for n, p in enumerate(group["params"])]
                groups.append({**group, "params": names})
                for name, p in zip(names, group["params"], strict=True):
                    if p in optimizer.state:
                        state[name] = optimizer.state[p]
        return {
            "class": type(optimizer).__name__,
            "groups": [
                {
                    "params": group["params"],
                    "settings": plain.encode(
                        {k: v for k, v in group.items() if k != "params"}, f"optimizer.{i}.group.{g}", tensors
                    ),
                }
                for g, group in enumerate(groups)
            ],
            "state": {name: plain.encode(s, f"optimizer.{i}.state.{name}", tensors) for name, s in state.items()},
        }

    def _name(self, group: int, number: int, parameter: torch.Tensor) -> str:
        """Its name in the model, or its place in the optimizer if the model does not list it."""
        return self._names.get(id(parameter), f"group{group}.{number}")

    def objection(self, trees: plain.Tree) -> str:
        """Why the saved state does not fit these optimizers; empty if it does."""
        if len(trees) != len(self._optimizers):
            return f"it holds {len(trees)} optimizers and the run has {len(self._optimizers)}"
        here = self.capture({})
        for i, (saved, own) in enumerate(zip(trees, here, strict=True)):
            if saved["class"] != own["class"]:
                return f"optimizer {i} was a {saved['class']} and is a {own['class']}"
            if [group["params"] for group in saved["groups"]] != [group["params"] for group in own["groups"]]:
                return f"the parameter groups of optimizer {i} hold other parameters than when it was saved"
        return ""

    def targets(self, trees: plain.Tree, index: Index) -> dict[str, torch.Tensor]:
        """The tensors to read into: existing ones, or new ones."""
        here: dict[str, torch.Tensor] = {}
        self.capture(here)
        targets = {}
        for i, tree in enumerate(trees):
            parameters = self._parameters(i)
            for g, group in enumerate(tree["groups"]):
                for key in plain.keys_in(group["settings"]):
                    targets[key] = self._target(key, here, index, self._optimizers[i].param_groups[g], None)
            for name, state in tree["state"].items():
                group_here, parameter = parameters.get(name, (self._optimizers[i].param_groups[0], None))
                sharded = set(plain.keys_in(state, sharded_only=True))
                for key in plain.keys_in(state):
                    made = self._target(key, here, index, group_here, parameter)
                    is_whole = parameter is not None and not plain.is_sharded(parameter)
                    if key in sharded and not is_whole and not plain.is_sharded(made):
                        raise ValueError(
                            f"{key} has a placement across the ranks that cannot be recreated; take one optimizer step "
                            "before loading"
                        )
                    targets[key] = made
        return targets

    def _target(
        self,
        key: str,
        here: Mapping[str, torch.Tensor],
        index: Index,
        group: Mapping[str, Any],
        parameter: torch.Tensor | None,
    ) -> torch.Tensor:
        stored, own = index[key], here.get(key)
        if own is not None and tuple(own.shape) == stored.size and own.dtype == stored.torch_dtype:
            return own
        if parameter is not None and tuple(parameter.shape) == stored.size:
            return torch.zeros_like(parameter, dtype=stored.torch_dtype, requires_grad=False)
        is_on_host = key.endswith(".step") and not (group.get("capturable") or group.get("fused"))
        device = "cpu" if parameter is None or is_on_host else parameter.device
        return torch.zeros(stored.size, dtype=stored.torch_dtype, device=device)

    def _parameters(self, i: int) -> dict[str, tuple[Mapping[str, Any], torch.Tensor | None]]:
        """Groups and parameters by name. For FSDP1 no parameters: they do not have the shape of their state."""
        return {
            self._name(g, n, p): (group, None if self._is_fsdp1 else p)
            for g, group in enumerate(self._optimizers[i].param_groups)
            for n, p in enumerate(group["params"])
        }

    def restore(self, trees: plain.Tree, tensors: Mapping[str, torch.Tensor]) -> None:
        """Restores the state; `tensors` are those of `targets`, read."""
        for i, (optimizer, tree) in enumerate(zip(self._optimizers, trees, strict=True)):
            settings = [plain.decode(group["settings"], tensors) for group in tree["groups"]]
            state = {name: plain.decode(saved, tensors) for name, saved in tree["state"].items()}
            if self._is_fsdp1:
                groups = [
                    {**values, "params": group["params"]}
                    for values, group in zip(settings, tree["groups"], strict=True)
                ]
                set_optimizer_state_dict(self._model, optimizer, {"state": state, "param_groups": groups})
                continue
            for own, values in zip(optimizer.param_groups, settings, strict=True):
                own.update(values)
            parameters = self._parameters(i)
            for name, (_, parameter) in parameters.items():
                assert parameter is not None
                if name in state:
                    optimizer.state[parameter] = state[name]
                else:
                    optimizer.state.pop(parameter, None)
