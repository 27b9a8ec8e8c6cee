"""Everything that a tool for before the run must leave as it was, as bytes and identities to compare."""

import hashlib
import random
from typing import Any

import numpy as np
import torch

from caboose.tensors.placement import own


def fingerprint(model: torch.nn.Module, *objects: Any) -> dict[str, Any]:
    """Parameters, buffers, gradients, modes, flags, hooks, plain attributes, random states, and the objects given."""
    found: dict[str, Any] = {}
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        found[f"parameter {name}"] = (_bytes(own(parameter)), own(parameter).data_ptr(), parameter.requires_grad)
        found[f"gradient {name}"] = None if gradient is None else (_bytes(own(gradient)), id(gradient))
    for name, buffer in model.named_buffers():
        found[f"buffer {name}"] = (_bytes(buffer), id(buffer))
    for name, module in model.named_modules():
        plain = {k: v for k, v in vars(module).items() if isinstance(v, bool | int | float | str | None)}
        hooks = {k: repr(v) for k, v in vars(module).items() if k.endswith("_hooks")}
        found[f"module {name}"] = (plain, hooks)
    for number, thing in enumerate(objects):
        found[f"object {number}"] = _tree(vars(thing))
    found["random"] = (
        _bytes(torch.get_rng_state()),
        hashlib.sha1(repr(random.getstate()).encode()).hexdigest(),
        hashlib.sha1(repr(np.random.get_state()).encode() + np.random.get_state()[1].tobytes()).hexdigest(),
    )
    return found


def changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """The names of what is not the same."""
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))


def _tree(tree: Any, depth: int = 0) -> Any:
    if isinstance(tree, torch.Tensor):
        return _bytes(own(tree)), id(tree)
    if isinstance(tree, torch.Generator):
        return _bytes(tree.get_state())
    if isinstance(tree, np.random.Generator):
        return repr(tree.bit_generator.state)
    if isinstance(tree, random.Random):
        return repr(tree.getstate())
    if isinstance(tree, dict):
        return [(id(key), _tree(value, depth)) for key, value in tree.items()]
    if isinstance(tree, list | tuple):
        return [_tree(value, depth) for value in tree]
    if isinstance(tree, bool | int | float | str | None):
        return repr(tree)
    if depth < 3 and hasattr(tree, "__dict__") and not isinstance(tree, type | torch.nn.Module):
        return _tree(vars(tree), depth + 1)
    return id(tree)


def _bytes(tensor: torch.Tensor) -> str:
    whole = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha1(whole.numpy().tobytes()).hexdigest()
