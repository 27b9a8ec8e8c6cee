"""Models small enough to step in a millisecond."""

from collections.abc import Callable, Sequence

from torch import nn


def mlp(
    inputs: int,
    outputs: int,
    *,
    hidden: Sequence[int] = (64, 64, 64),
    activation: Callable[[], nn.Module] = nn.ReLU,
    norm: Callable[[int], nn.Module] | None = None,
    dropout: float = 0.0,
) -> nn.Sequential:
    """Layers `layer1`, `layer2` ..., each with a `linear`, an optional `norm`, an `activation` and an optional
    `dropout`; and a `head`.
    """
    model = nn.Sequential()
    width = inputs
    for number, wide in enumerate(hidden, start=1):
        layer = nn.Sequential()
        layer.add_module("linear", nn.Linear(width, wide))
        if norm is not None:
            layer.add_module("norm", norm(wide))
        layer.add_module("activation", activation())
        if dropout:
            layer.add_module("dropout", nn.Dropout(dropout))
        model.add_module(f"layer{number}", layer)
        width = wide
    model.add_module("head", nn.Linear(width, outputs))
    return model


def linear(model: nn.Module, name: str) -> nn.Linear:
    """The linear layer with this name, such as `layer2.linear`."""
    found = model.get_submodule(name)
    assert isinstance(found, nn.Linear), f"{name} is a {type(found).__name__}"
    return found
