"""The parts of a job: several models, each with optimizers and a loss of its own, watched as one.

Design
------
A GAN or an actor with its critics is one job: one process, one step, one stream of reports. So its models are children
of one module, `PartedModel`, which everything that reads a model reads as usual: layers, modes, activations, snapshots.
It is never called; the calls that are watched are those of the models themselves. Being listed in it changes nothing in
a model.

Layers and parameter groups are in the order of the parts, so each part is a range of both tables: the norm of a part
and its learning rates need no field of their own in a report. A parameter that two parts hold belongs to the first.
What an optimizer updates and no model lists (a temperature, an image) belongs to the part of that optimizer.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from caboose.guard import left_out
from caboose_wire import Layer, Part
from caboose_wire.fields import MAX_PARTS

MAX_NAME = 64


@dataclass(frozen=True, slots=True, eq=False)
class TrainedPart:
    """One part: its models, or none, and the optimizers that update it."""

    name: str
    models: tuple[torch.nn.Module, ...]
    optimizers: tuple[torch.optim.Optimizer, ...]


class ModelList(torch.nn.ModuleList):
    """Several models of one part."""


class PartedModel(torch.nn.Module):
    """The models of all parts, by the names of the parts."""

    def __init__(self, parts: Sequence[TrainedPart]) -> None:
        super().__init__()
        for part in parts:
            single = len(part.models) == 1
            if part.models:
                self.add_module(part.name, part.models[0] if single else ModelList(part.models))


@dataclass(frozen=True, slots=True, eq=False)
class Outline:
    """What is trained: one model, or several as parts."""

    model: torch.nn.Module
    optimizers: list[torch.optim.Optimizer]
    called: tuple[torch.nn.Module, ...]
    """The modules whose calls are the forward; never empty."""
    parts: tuple[TrainedPart, ...] = ()
    """Empty where there is one model."""

    @classmethod
    def of_model(cls, model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> "Outline":
        return cls(model, list(optimizers), (model,))

    @classmethod
    def of_parts(cls, parts: Sequence[TrainedPart]) -> "Outline":
        """Several parts; or the models of the only one, as a plain job."""
        called = tuple(model for part in parts for model in part.models)
        optimizers = [optimizer for part in parts for optimizer in part.optimizers]
        if len(parts) > 1:
            return cls(PartedModel(parts), optimizers, called, tuple(parts))
        return cls(called[0] if len(called) == 1 else ModelList(called), optimizers, called)


def given(models: Mapping[str, Any], optimizers: Any) -> Outline:
    """The parts that the user gave to `attach`; TypeError or ValueError names what does not fit."""
    if not isinstance(optimizers, Mapping):
        raise TypeError(
            "attach(models, optimizers): with a mapping of models, give a mapping of optimizers with the same keys, "
            f"not a {type(optimizers).__name__}"
        )
    if not models:
        raise ValueError("attach(models): give at least one model")
    if len(models) > MAX_PARTS:
        raise ValueError(f"attach(models): {len(models)} parts; the limit is {MAX_PARTS}")
    apart = sorted(map(str, models.keys() ^ optimizers.keys()))
    if apart:
        raise ValueError(
            f"attach(models, optimizers): {', '.join(map(repr, apart))} only in one of the two; both need the same keys"
        )
    return Outline.of_parts([_given(name, models[name], optimizers[name]) for name in models])


def _given(name: Any, models: Any, optimizers: Any) -> TrainedPart:
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
        raise ValueError(
            f"attach(models): {name!r} cannot be the name of a part; use 1 to {MAX_NAME} letters, digits, _ or -"
        )
    if hasattr(PartedModel, name) or name in ("training", "_modules"):
        raise ValueError(f"attach(models): {name!r} cannot be the name of a part: it is an attribute of every module")
    listed = models if isinstance(models, list | tuple) else [models]
    for model in listed:
        if not isinstance(model, torch.nn.Module | torch.Tensor):
            raise TypeError(
                f"attach(models[{name!r}]): expected a torch module, a tensor, or a list of them, "
                f"got {type(model).__name__}"
            )
    chosen = list(optimizers) if isinstance(optimizers, list | tuple) else [optimizers]
    for optimizer in chosen:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(
                f"attach(optimizers[{name!r}]): expected a torch optimizer or a list of them, "
                f"got {type(optimizer).__name__}"
            )
    if not chosen:
        raise ValueError(f"attach(optimizers[{name!r}]): give at least one optimizer")
    return TrainedPart(name, tuple(m for m in listed if isinstance(m, torch.nn.Module)), tuple(chosen))


def parameters_by_part(parts: Sequence[TrainedPart]) -> Iterator[tuple[str, str, torch.Tensor]]:
    """Part, name within the part, and parameter: those of the models, then those that only its optimizers hold."""
    held = {id(p) for part in parts for model in part.models for p in model.parameters()}
    seen: set[int] = set()
    for part in parts:
        for number, model in enumerate(part.models):
            prefix = f"{number}." if len(part.models) > 1 else ""
            for name, p in model.named_parameters():
                if id(p) not in seen:
                    seen.add(id(p))
                    yield part.name, prefix + name, p
        for o, optimizer in enumerate(part.optimizers):
            for g, group in enumerate(optimizer.param_groups):
                for i, p in enumerate(group["params"]):
                    if id(p) not in seen and id(p) not in held:
                        seen.add(id(p))
                        yield part.name, f"optimizer{o}.group{g}.{i}", p


def wire_parts(parts: Sequence[TrainedPart], layers: Sequence[Layer], num_groups: int) -> tuple[Part, ...]:
    """The parts for the Hello; the layers' names begin with those of their parts."""
    found: list[Part] = []
    row = group = 0
    for part in parts:
        first, first_group = row, group
        while row < len(layers) and layers[row].name.startswith(f"{part.name}."):
            row += 1
        group = min(num_groups, group + sum(len(optimizer.param_groups) for optimizer in part.optimizers))
        found.append(Part(name=part.name, layers=(first, row), groups=(first_group, group)))
    return tuple(found)


def of_parts(loss: Any, parts: Sequence[TrainedPart]) -> list[Any]:
    """What `monitor.step` was given, in the order of the parts: a mapping, or the loss of the first part alone."""
    if not isinstance(loss, Mapping):
        return [loss] + [None] * (len(parts) - 1)
    if not loss.keys() <= {part.name for part in parts}:
        left_out("the loss of a part that attach was not given")
    return [loss.get(part.name) for part in parts]
