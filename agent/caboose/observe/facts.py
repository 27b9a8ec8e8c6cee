"""Facts about the model and the run for the diagnosis, sent once, in the Hello."""

import math
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules.dropout import _DropoutNd

from caboose.observe import provenance
from caboose.tensors.engines import num_elements
from caboose.tensors.placement import own
from caboose_wire.fields import Scalar

ACTIVATIONS = (
    "ReLU",
    "ReLU6",
    "LeakyReLU",
    "GELU",
    "SiLU",
    "Tanh",
    "Sigmoid",
    "ELU",
    "SELU",
    "Hardswish",
    "Mish",
    "PReLU",
)
MAX_INIT_LAYERS = 64
MIN_DRAWN = 256
"""Elements of a weight whose deviation tells how it was drawn."""
CGROUP = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""A container's memory limit, in control groups version 2 and 1."""


def gather(
    model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer], *, schedulers: Sequence[Any], scaler: Any
) -> dict[str, Scalar]:
    """The facts; those that cannot be read are left out."""
    parameters = list(model.parameters())
    kinds = Counter(type(module).__name__ for module in model.modules())
    dropouts = sorted({m.p for m in model.modules() if isinstance(m, _DropoutNd)})
    facts: dict[str, Scalar] = {
        "num_parameters": sum(map(num_elements, parameters)),
        "num_trainable": sum(num_elements(p) for p in parameters if p.requires_grad),
        "precision": _most_common(str(p.dtype).removeprefix("torch.") for p in parameters),
        "device": _most_common(p.device.type for p in parameters),
        "activations": _listed(kind for kind in kinds if kind in ACTIVATIONS),
        "norms": _listed(kind for kind in kinds if "Norm" in kind),
        "attention": any("attention" in kind.lower() for kind in kinds),
        "dropout": ", ".join(f"{p:g}" for p in dropouts) or None,
        "optimizer": _listed(type(optimizer).__name__ for optimizer in optimizers),
        "scheduler": _listed(type(scheduler).__name__ for scheduler in schedulers),
        "scaler": scaler is not None and bool(scaler.is_enabled()),
    }
    device = facts["device"]
    facts |= _initial_weights(model) | _recurrent_weights(model) | _at_random(model, optimizers)
    facts["linear_pairs"] = _linear_pairs(model) or None
    facts |= provenance.gather()
    facts |= _memory_limits(device if isinstance(device, str) else None)
    return {name: value for name, value in facts.items() if value is not None}


def of_loader(loader: Any) -> dict[str, Scalar]:
    """Batch size, workers, dataset length and number of batches, where the loader has them."""
    facts: dict[str, Scalar] = {}
    for name in ("batch_size", "num_workers"):
        number = getattr(loader, name, None)
        if isinstance(number, int):
            facts[name] = number
    for name, sized in (("dataset_length", getattr(loader, "dataset", None)), ("num_batches", loader)):
        try:
            facts[name] = len(sized)  # type: ignore[arg-type]  # what has no length is left out
        except (TypeError, NotImplementedError, AttributeError):
            continue
    return facts


def _most_common(values: Any) -> str | None:
    counted = Counter(values).most_common(1)
    return counted[0][0] if counted else None


def _listed(names: Any) -> str | None:
    return ", ".join(sorted(set(names))) or None


def _initial_weights(model: torch.nn.Module) -> dict[str, Scalar]:
    """`init_he_min` and `init_he_max`: standard deviation of a layer's weights over that of He initialisation.

    Read once, at attach, from a part of the first layers; it waits for the device. Frozen weights are left out: a fixed
    filter was not drawn.
    """
    ratios: list[float] = []
    for module in model.modules():
        # As an attribute it may be computed, which may change the model.
        weight = module._parameters.get("weight")  # noqa: SLF001 - as above
        if weight is None or weight.dim() < 2 or not weight.requires_grad or isinstance(module, torch.nn.Embedding):
            continue
        if len(ratios) == MAX_INIT_LAYERS:
            break
        fan_in = math.prod(weight.shape[1:])
        part = own(weight).detach().reshape(-1)[:65_536].float()
        if part.numel() < 2:
            continue
        ratios.append(float(part.std()) / math.sqrt(2 / fan_in))
    if not ratios:
        return {}
    return {"init_he_min": _rounded(min(ratios)), "init_he_max": _rounded(max(ratios))}


def _recurrent_weights(model: torch.nn.Module) -> dict[str, Scalar]:
    """`init_recurrent`: the largest factor by which recurrent weights stretch a state, as random ones of their size do.

    Weights of standard deviation s between n units have a spectral radius near s times the root of n: above 1 a state,
    and its gradient, grows from step to step of the sequence. torch's defaults have 0.58.
    """
    found: list[float] = []
    for module in model.modules():
        if not isinstance(module, torch.nn.RNNBase | torch.nn.RNNCellBase):
            continue
        for name, weight in module._parameters.items():  # noqa: SLF001 - as above
            if weight is None or not weight.requires_grad:
                continue
            if "weight_hh" not in name or len(found) == MAX_INIT_LAYERS:
                continue
            part = own(weight).detach().reshape(-1)[:65_536].float()
            if part.numel() > 1:
                found.append(float(part.std()) * math.sqrt(weight.shape[-1]))
    return {"init_recurrent": _rounded(max(found))} if found else {}


def _at_random(model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, Scalar]:
    """`frozen_at_random` and `unheld_at_random`: elements of weights that are still as torch draws them, and stay so.

    The first are frozen, the second in no optimizer. torch draws linear and convolutional weights uniformly within one
    over the root of the inputs, and recurrent ones within one over the root of the units. Trained weights keep neither
    that limit nor its deviation. Embeddings are left out: what they are drawn with has no limit.
    """
    held = {id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
    found = {"frozen_at_random": 0, "unheld_at_random": 0}
    num = 0
    for weight, bound in _drawn_weights(model):
        if num == MAX_INIT_LAYERS:
            break
        if weight.requires_grad and (not held or id(weight) in held):
            continue
        num += 1
        if _is_as_drawn(weight, bound):
            found["unheld_at_random" if weight.requires_grad else "frozen_at_random"] += num_elements(weight)
    return {name: value for name, value in found.items() if value}


def _drawn_weights(model: torch.nn.Module) -> Iterator[tuple[torch.Tensor, float]]:
    """The weights that torch draws uniformly, with the limit it draws them in."""
    for module in model.modules():
        if isinstance(module, torch.nn.RNNBase | torch.nn.RNNCellBase):
            limit = 1.0 / math.sqrt(max(1, module.hidden_size))
            yield from ((w, limit) for w in module._parameters.values() if w is not None and w.dim() > 1)  # noqa: SLF001
            continue
        weight = module._parameters.get("weight")  # noqa: SLF001 - as above
        if weight is not None and weight.dim() > 1 and not isinstance(module, torch.nn.Embedding):
            yield weight, 1.0 / math.sqrt(math.prod(weight.shape[1:]))


def _linear_pairs(model: torch.nn.Module) -> int:
    """Linear layers whose input is another one's output, with nothing between them that is not linear.

    Only a plain `Sequential` shows what follows what. A pair with fewer units between them is a factor on purpose.
    """
    num = 0
    before: torch.nn.Linear | None = None
    for module in _in_sequence(model):
        if isinstance(module, torch.nn.Identity | _DropoutNd):
            continue
        after = module if isinstance(module, torch.nn.Linear) else None
        if before is not None and after is not None:
            num += before.out_features >= min(before.in_features, after.out_features)
        before = after
    return num


def _in_sequence(module: torch.nn.Module) -> Iterator[torch.nn.Module | None]:
    """The modules of each plain sequence in the order in which they run; None between two sequences."""
    if isinstance(module, torch.nn.Sequential) and type(module).forward is torch.nn.Sequential.forward:
        for child in module:
            if isinstance(child, torch.nn.Sequential):
                yield from _in_sequence(child)
            else:
                yield child
                yield from _elsewhere(child)
    else:
        yield from _elsewhere(module)


def _elsewhere(module: torch.nn.Module) -> Iterator[torch.nn.Module | None]:
    """The sequences inside of another module."""
    for child in module.children():
        yield None
        yield from _in_sequence(child)
        yield None


def _is_as_drawn(weight: torch.Tensor, bound: float) -> bool:
    """Whether a weight's deviation and limit are those of torch's default initialisation."""
    part = own(weight).detach().reshape(-1)[:65_536].float()
    if part.numel() < MIN_DRAWN:
        return False
    off = abs(float(part.std()) * math.sqrt(3.0) / bound - 1.0)
    return off < 3.0 / math.sqrt(part.numel()) and float(part.abs().max()) <= bound * 1.0001


def _rounded(ratio: float) -> float:
    """Two significant digits: a part of the weights gives no more."""
    return float(f"{ratio:.2g}")


def _memory_limits(device: str | None) -> dict[str, Scalar]:
    """`host_memory_bytes`, `device_memory_bytes`, and how many ranks share a host."""
    facts: dict[str, Scalar] = {}
    host = [size for size in (_host_memory(), *(_container_limit(path) for path in CGROUP)) if size]
    if host:
        facts["host_memory_bytes"] = min(host)
    if device == "cuda" and torch.cuda.is_available():
        facts["device_memory_bytes"] = int(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory)
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
    if ranks.isdecimal() and int(ranks):
        facts["ranks_per_host"] = int(ranks)
    return facts


def _host_memory() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return 0


def _container_limit(path: Path) -> int:
    """A container's limit; 0 where there is none ("max"), or no container."""
    try:
        text = path.read_text().strip()
    except OSError:
        return 0
    return int(text) if text.isdecimal() else 0
