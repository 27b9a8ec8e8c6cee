"""Diseases of the model: what they change in a plan."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from caboose_drills.randomised.plan import Plan

BODY = ("blocks", "layer1", "encoder", "rnn")
"""Where a model's first trained part is, by the name of a child."""


class Detached(nn.Module):
    """A module whose output has no gradient."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Tensor, **kwargs: Tensor) -> Any:
        return _without_graph(self.inner(*args, **kwargs))


def _without_graph(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else tuple(_without_graph(part) for part in value)


class WithSoftmax(nn.Sequential):
    """A model that ends in a softmax, though its loss takes one as well."""


def softmax_twice(plan: Plan) -> None:
    plan.edit_model.append(lambda model: WithSoftmax(model, nn.Softmax(dim=-1)))


def no_nonlinearity(plan: Plan) -> None:
    """Layers without anything between them that is not linear."""
    plan.activation, plan.is_clustered, plan.has_norms = "none", True, False


def dead_relu(plan: Plan) -> None:
    """Biases of one ReLU layer that are strongly negative."""
    plan.activation, plan.has_norms = "relu", False
    shift = -2.0 - 8.0 * plan.draw.strength

    def kill(model: nn.Module) -> nn.Module:
        layers = [(name, m) for name, m in model.named_modules() if _feeds_relu(name, m)]
        name, layer = layers[plan.draw.seed % len(layers)]
        with torch.no_grad():
            layer.bias.add_(shift)
        plan.origin_layers = (name.rpartition(".")[0] or name,)
        return model

    plan.edit_model.append(kill)


def _feeds_relu(name: str, module: nn.Module) -> bool:
    return isinstance(module, nn.Linear | nn.Conv2d) and "head" not in name and module.bias is not None


def vanishing_depth(plan: Plan) -> None:
    plan.activation, plan.has_norms = "sigmoid" if plan.draw.seed % 3 else "tanh", False
    plan.depth, plan.dropout = 8 + round(6 * plan.draw.strength), 0.0
    if plan.activation == "tanh":
        plan.edit_model.append(lambda model: _scaled(model, 0.15))


def _scaled(model: nn.Module, factor: float) -> nn.Module:
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(factor)
    return model


def init_large(plan: Plan) -> None:
    """Weights drawn with a deviation of one, or nearly."""
    plan.has_norms = plan.has_norms and plan.draw.family == "cnn"
    factor = 8.0 * 4.0**plan.draw.strength
    plan.edit_model.append(lambda model: _scaled(model, factor))


def init_recurrent(plan: Plan) -> None:
    """Recurrent weights with a spectral radius far above one."""
    plan.is_recurrent_plain = plan.draw.seed % 2 == 0
    factor = 8.0 * 4.0**plan.draw.strength

    def grow(model: nn.Module) -> nn.Module:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "weight_hh" in name:
                    parameter.mul_(factor)
        return model

    plan.edit_model.append(grow)


def init_zero(plan: Plan) -> None:
    """Weights that are all zero, or all but: a custom init with a wrong deviation."""
    factor = 0.0 if plan.draw.seed % 2 else 1e-4
    plan.has_norms = False
    plan.edit_model.append(lambda model: _scaled(model, factor))


def first_part(model: nn.Module) -> str:
    """The name of the first trained part."""
    names = [name for name, _ in model.named_children()]
    return next((name for name in BODY if name in names), names[0])


def frozen(plan: Plan) -> None:
    """A flag of a fine-tuning script, left in: all but the head, or the head alone, is not trained."""

    def freeze(model: nn.Module) -> nn.Module:
        names = [name for name, _ in model.named_children()]
        chosen = names[:-1] if plan.draw.strength < 0.7 else names[-1:]
        for name in chosen:
            for parameter in model.get_submodule(name).parameters():
                parameter.requires_grad = False
        plan.origin_layers = tuple(chosen)
        return model

    plan.edit_model.append(freeze)


def detached(plan: Plan) -> None:
    """The output of a part in front is detached."""

    def cut(model: nn.Module) -> nn.Module:
        name = first_part(model)
        if name == "layer1":
            name = f"layer{plan.depth}"
        setattr(model, name, _cut(model.get_submodule(name)))
        plan.origin_layers = (name,)
        return model

    plan.edit_model.append(cut)


def _cut(module: nn.Module) -> nn.Module:
    if isinstance(module, nn.ModuleList):
        module[-1] = Detached(module[-1])
        return module
    return Detached(module)


def unregistered(plan: Plan) -> None:
    """The head, or the body, was made anew after the optimizer."""
    chosen: list[str] = []

    def note(model: nn.Module) -> nn.Module:
        names = [name for name, _ in model.named_children()]
        chosen[:] = names[-1:] if plan.draw.strength < 0.5 else [first_part(model)]
        plan.origin_layers = tuple(chosen)
        return model

    plan.edit_model.append(note)
    plan.is_trained = lambda name: not any(name.startswith(f"{part}.") for part in chosen)


FAULTS: dict[str, Callable[[Plan], None]] = {
    "softmax_twice": softmax_twice,
    "no_nonlinearity": no_nonlinearity,
    "dead_relu": dead_relu,
    "vanishing_depth": vanishing_depth,
    "init_large": init_large,
    "init_recurrent": init_recurrent,
    "init_zero": init_zero,
    "frozen": frozen,
    "detached": detached,
    "unregistered": unregistered,
}
