"""Whether `rollback="auto"` is supported for this run; checked at attach, before training."""

import gc
import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch import distributed as dist

from caboose.settings.environment import Settings

STAGES = frozenset({"pp", "pipeline"})
"""Names of a pipeline's dimension in a mesh."""
ADVISE = 'use rollback="advise" to see what Caboose would do'


def check(model: torch.nn.Module, optimizers: Iterable[Any], settings: Settings, world: int) -> None:
    """ValueError with the reason, if all ranks could not be taken back together."""
    reason = (
        _unsigned(settings)
        or _without_group(world)
        or _in_stages(model)
        or _with_changing_members(optimizers)
        or _foreign(optimizers)
    )
    if reason:
        raise ValueError(f'attach(rollback="auto"): {reason}; {ADVISE}')


def _unsigned(settings: Settings) -> str:
    if settings.is_local or settings.secret is not None:
        return ""
    return (
        f"the daemon at {settings.endpoint} is on another machine, and commands would not be signed: set "
        "CABOOSE_SECRET_FILE to a file with the same secret here and at the daemon (`openssl rand -hex 32`)"
    )


def _without_group(world: int) -> str:
    has_group = dist.is_available() and dist.is_initialized()
    if not has_group:
        return f"{world} ranks and no process group: call init_process_group before attach" if world > 1 else ""
    if dist.get_world_size() != world:
        return f"world_size={world}, but the process group has {dist.get_world_size()} ranks; pass neither"
    return ""


def _in_stages(model: torch.nn.Module) -> str:
    """Stages of a pipeline are at different micro-batches, and may not be at the same boundary when they agree."""
    if _is_held_by_a_stage(model) or _is_on_a_mesh_of_stages(model):
        return "pipeline parallel is not supported: its stages hold different parameters and step differently"
    return ""


def _is_held_by_a_stage(model: torch.nn.Module) -> bool:
    """Whether a live stage of torch's pipelining runs this model, or a part of it.

    The stage holds the module and the module knows nothing of it, so the stages are looked for among all objects of the
    process: tens of milliseconds, once, and only where the program has imported pipelining itself.
    """
    stage = getattr(sys.modules.get("torch.distributed.pipelining.stage"), "_PipelineStageBase", None)
    if stage is None:
        return False
    mine = {id(module) for module in model.modules()}
    # By type: isinstance would ask an object of someone else's for its class, and some of them act when they are asked.
    stages = [thing for thing in gc.get_objects() if issubclass(type(thing), stage)]
    held = [getattr(one, "submod", None) for one in stages]
    return any(id(m) in mine for whole in held if isinstance(whole, torch.nn.Module) for m in whole.modules())


def _is_on_a_mesh_of_stages(model: torch.nn.Module) -> bool:
    """Whether the parameters lie on part of a mesh that has more than one stage; they themselves know only the part."""
    meshes = {id(mesh): mesh for p in model.parameters() if (mesh := getattr(p, "device_mesh", None)) is not None}
    roots = [mesh._get_root_mesh() if hasattr(mesh, "_get_root_mesh") else mesh for mesh in meshes.values()]
    return any(
        name in STAGES and root.size(place) > 1
        for root in roots
        for place, name in enumerate(root.mesh_dim_names or ())
    )


def _with_changing_members(optimizers: Iterable[Any]) -> str:
    """torchft lets replica groups come and go within a run; an agreement needs to know who all are."""
    is_torchft = any(type(optimizer).__module__.startswith("torchft") for optimizer in optimizers)
    group = type(dist.group.WORLD).__module__ if dist.is_available() and dist.is_initialized() else ""
    if is_torchft or group.startswith("torchft"):
        return "torchft changes the members of a run while it runs, and all ranks could not be asked"
    return ""


def _foreign(optimizers: Iterable[Any]) -> str:
    for optimizer in optimizers:
        if not hasattr(optimizer, "state") or not hasattr(optimizer, "param_groups"):
            return f"{type(optimizer).__name__} keeps its state where it cannot be copied"
    return ""
