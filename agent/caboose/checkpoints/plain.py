"""Turns state dicts into JSON values and tensors, and back, without pickle.

Design
------
A JSON value stays itself; everything else is `{"is": kind, "of": content}`, including a dict, since its keys may be
numbers. A tensor becomes its key, and the caller stores it. Anything else (a user's object, a function) is an error
that names it, at the first save: only pickle could write it.
"""

import base64
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from caboose.checkpoints.errors import CheckpointFailed

Tree = Any
"""A value for json.dumps that `decode` understands."""


def is_sharded(tensor: torch.Tensor) -> bool:
    """Whether it is a DTensor, of which this rank holds a part."""
    return type(tensor).__name__ in ("DTensor", "ShardedTensor")


def encode(value: Any, key: str, tensors: dict[str, torch.Tensor]) -> Tree:
    """The value as JSON; its tensors are added to `tensors` under names that begin with `key`."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"is": "float", "of": str(float(value))}
    if isinstance(value, torch.Tensor) or is_sharded(value):
        tensors[key] = value.detach() if isinstance(value, torch.nn.Parameter) else value
        return {"is": "sharded" if is_sharded(value) else "tensor", "of": key}
    if isinstance(value, list):
        return [encode(part, f"{key}.{i}", tensors) for i, part in enumerate(value)]
    if isinstance(value, tuple):
        return {"is": "tuple", "of": encode(list(value), key, tensors)}
    if isinstance(value, set | frozenset):
        return {"is": "set", "of": encode(sorted(value), key, tensors)}
    if isinstance(value, Mapping):
        pairs = [[encode(k, key, tensors), encode(v, f"{key}.{k}", tensors)] for k, v in value.items()]
        return {"is": "counter" if isinstance(value, Counter) else "dict", "of": pairs}
    return {"is": (pair := _rest(value, key, tensors))[0], "of": pair[1]}


def _rest(value: Any, key: str, tensors: dict[str, torch.Tensor]) -> tuple[str, Tree]:
    if isinstance(value, bytes | bytearray):
        return "bytes", base64.b64encode(value).decode()
    if isinstance(value, torch.dtype):
        return "dtype", str(value).removeprefix("torch.")
    if isinstance(value, torch.device):
        return "device", str(value)
    if isinstance(value, np.generic | np.ndarray) and np.asarray(value).dtype.kind in "biuf":
        tensors[key] = torch.from_numpy(np.array(value))
        return "array" if isinstance(value, np.ndarray) else "scalar", key
    raise CheckpointFailed(
        f"{key} is a {type(value).__name__}, which can only be pickled, and Caboose does not; let its state_dict() "
        "return numbers, text, tensors, and lists and dicts of them"
    )


def decode(tree: Tree, tensors: Mapping[str, torch.Tensor]) -> Any:
    """The encoded value; ValueError if `encode` did not make it."""
    if isinstance(tree, list):
        return [decode(part, tensors) for part in tree]
    if not isinstance(tree, dict):
        return tree
    kind, content = tree["is"], tree["of"]
    match kind:
        case "tensor" | "sharded":
            return tensors[content]
        case "array":
            return tensors[content].numpy()
        case "scalar":
            return tensors[content].numpy()[()]
        case "float":
            return float(content)
        case "tuple":
            return tuple(decode(content, tensors))
        case "set":
            return set(decode(content, tensors))
        case "dict" | "counter":
            pairs = {decode(k, tensors): decode(v, tensors) for k, v in content}
            return Counter(pairs) if kind == "counter" else pairs
        case "bytes":
            return base64.b64decode(content)
        case "dtype":
            return getattr(torch, content)
        case "device":
            return torch.device(content)
    raise ValueError(f"a value of unknown kind {kind!r}")


def keys_in(tree: Tree, *, sharded_only: bool = False) -> Iterator[str]:
    """The keys of all tensors in a tree, or of the sharded ones."""
    if isinstance(tree, list):
        for part in tree:
            yield from keys_in(part, sharded_only=sharded_only)
    elif isinstance(tree, dict):
        if tree["is"] == "sharded" or (tree["is"] in ("tensor", "array", "scalar") and not sharded_only):
            yield tree["of"]
        elif tree["is"] in ("tuple", "set", "dict", "counter"):
            yield from keys_in(tree["of"], sharded_only=sharded_only)
