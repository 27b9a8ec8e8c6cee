"""Which parts of a model hide their activations from hooks: what is compiled, and what is scripted."""

from collections.abc import Iterator, Mapping
from types import FunctionType
from typing import Literal

import torch

Opaque = Literal["compiled", "scripted"]
OPAQUE: Mapping[Opaque, str] = {
    "compiled": "inside a compiled graph: Sampling(compiled=True) or CABOOSE_SAMPLE_COMPILED=1 shows them",
    "scripted": "inside a scripted module",
}
"""What hides activations from hooks, and the reason given for it."""


def reason_for_blindness(model: torch.nn.Module) -> str:
    """Why this model's activations cannot be seen; empty if they can."""
    kind = opaque_kind(model)
    return "" if kind is None else OPAQUE[kind]


def is_compiled(model: torch.nn.Module) -> bool:
    """Whether its activations are hidden inside a compiled graph, so that running it eagerly would show them."""
    return opaque_kind(model) == "compiled"


def opaque_kind(model: torch.nn.Module) -> Opaque | None:
    """What hides this model's activations, by the first module that does; None if nothing does."""
    for module in model.modules():
        if has_graph(module):
            return "compiled"
        if isinstance(module, torch.jit.ScriptModule):
            return "scripted"
    return None


def has_graph(module: torch.nn.Module) -> bool:
    if type(module).__name__ == "OptimizedModule" or module._compiled_call_impl is not None:
        return True
    # `module.forward = torch.compile(module.forward)`, or a compiled function kept beside it
    return any(
        isinstance(value, FunctionType) and hasattr(value, "_torchdynamo_orig_callable")
        for value in vars(module).values()
    )


def outside_graphs(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """The module and those in it that no compiled part contains."""
    if has_graph(module):
        return
    yield module
    for child in module.children():
        yield from outside_graphs(child)
