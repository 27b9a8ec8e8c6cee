"""What a framework has wrapped: the model that is called, the optimizer that steps, and the scaler it uses.

Design
------
A wrapper is recognised by the name of its class and of the package that defines it, so no framework is imported. What
is watched is inside: an `AcceleratedOptimizer` has no hooks and steps only when gradients are synchronised, which its
inner optimizer's step shows; a `_FabricModule` lists every parameter under another name. A DeepSpeed engine is a model
that steps by itself (`observe.engine_optimizer`): whatever optimizer is given beside it, its own is watched.

A container is an optimizer that only steps others, which it keeps in a list named `optimizers`, as torchtitan's does.
Its own groups are not those whose learning rates are scheduled, so the others are watched in its place.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

OPTIMIZERS: Mapping[tuple[str, str], str] = {
    ("accelerate", "AcceleratedOptimizer"): "optimizer",
    ("lightning", "_FabricOptimizer"): "optimizer",
    ("lightning_fabric", "_FabricOptimizer"): "optimizer",
    ("lightning", "LightningOptimizer"): "optimizer",
    ("pytorch_lightning", "LightningOptimizer"): "optimizer",
}
"""By package and class, the attribute that holds the wrapped optimizer."""
MODELS: Mapping[tuple[str, str], str] = {
    ("lightning", "_FabricModule"): "_forward_module",
    ("lightning_fabric", "_FabricModule"): "_forward_module",
}
SCHEDULERS: Mapping[tuple[str, str], str] = {("accelerate", "AcceleratedScheduler"): "scheduler"}
SCALERS: tuple[str, ...] = ("scaler", "_strategy.precision.scaler")
"""Where a wrapped optimizer keeps the gradient scaler: Accelerate, Fabric."""


@dataclass(frozen=True, slots=True)
class Unwrapped:
    """What is watched."""

    model: Any
    optimizers: Any
    """As they were given, but for the wrappers; not checked."""
    scheduler: Any
    scaler: Any
    engine: Any
    """The DeepSpeed engine that the model is, or None."""


def unwrapped(model: Any, optimizers: Any, scheduler: Any, scaler: Any) -> Unwrapped:
    """The same without the wrappers of frameworks; what is not wrapped is returned as it is."""
    model = _inner(model, MODELS)
    if scaler is None:
        scaler = next((found for each in _listed(optimizers) if (found := _scaler(each)) is not None), None)
    engine, engine_optimizer = _of_engine(model)
    if engine_optimizer is not None:
        optimizers = engine_optimizer
    elif isinstance(optimizers, list | tuple):
        optimizers = [one for each in optimizers for one in _expanded(_inner(each, OPTIMIZERS))]
    else:
        inner = _inner(optimizers, OPTIMIZERS)
        optimizers = contained_in(inner) or inner
    if isinstance(scheduler, list | tuple):
        scheduler = [_inner(each, SCHEDULERS) for each in scheduler]
    else:
        scheduler = _inner(scheduler, SCHEDULERS)
    return Unwrapped(model, optimizers, scheduler, scaler, engine)


def unwrapped_parts(models: Mapping[str, Any], optimizers: Any) -> tuple[Mapping[str, Any], Any]:
    """The same for each part of a job. What fits together is checked later; so are optimizers that are no mapping."""
    if not isinstance(optimizers, Mapping):
        return models, optimizers
    inner = {
        name: [_inner(each, MODELS) for each in model] if isinstance(model, list | tuple) else _inner(model, MODELS)
        for name, model in models.items()
    }
    return inner, {
        name: [one for each in _listed(given) for one in _expanded(_inner(each, OPTIMIZERS))]
        for name, given in optimizers.items()
    }


def contained_in(optimizer: Any) -> list[Any]:
    """The optimizers that this one steps, if it is a container; else none."""
    inner = getattr(optimizer, "__dict__", {}).get("optimizers")
    if not isinstance(inner, list | tuple) or not all(hasattr(each, "param_groups") for each in inner):
        return []
    return list(inner)


def _expanded(optimizer: Any) -> list[Any]:
    return contained_in(optimizer) or [optimizer]


def refuse_for_engine(what: str) -> NoReturn:
    """What Caboose cannot do where DeepSpeed owns weights, optimizer state and step."""
    raise ValueError(
        f"attach({what}): DeepSpeed keeps weights and optimizer state in buffers of its own, which Caboose neither "
        'saves nor restores; use engine.save_checkpoint and monitor.event("checkpoint", step=..., path=...)'
    )


def _of_engine(model: Any) -> tuple[Any, Any]:
    from caboose.tensors.engines import engine_of

    engine = engine_of(model)
    if engine is None:
        return None, None
    from caboose.observe.engine_optimizer import of_engine

    return engine, of_engine(engine)


def _inner(thing: Any, wrappers: Mapping[tuple[str, str], str]) -> Any:
    while (attribute := _attribute(thing, wrappers)) is not None:
        inner = getattr(thing, attribute, None)
        if inner is None:
            break
        thing = inner
    return thing


def _attribute(thing: Any, wrappers: Mapping[tuple[str, str], str]) -> str | None:
    bases = type(thing).__mro__
    return next(
        (wrappers[key] for base in bases if (key := (base.__module__.partition(".")[0], base.__name__)) in wrappers),
        None,
    )


def _listed(optimizers: Any) -> "list[Any] | tuple[Any, ...]":
    return optimizers if isinstance(optimizers, list | tuple) else [optimizers]


def _scaler(optimizer: Any) -> Any:
    if _attribute(optimizer, OPTIMIZERS) is None:
        return None
    for path in SCALERS:
        found = optimizer
        for name in path.split("."):
            found = getattr(found, name, None)
        if hasattr(found, "is_enabled"):
            return found
    return None
