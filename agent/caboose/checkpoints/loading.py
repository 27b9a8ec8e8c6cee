"""Loads a checkpoint: checked by all ranks first, then read into the run in place.

Design
------
Nothing is touched before every rank has agreed that it can load the checkpoint. The checksums are divided among the
ranks, so each file is read once for that; all ranks have the result before one of them decodes anything, since the rank
that reads a file need not be the one that checked it. Any failure until then is a refusal, and the next best may be
tried. Only then tensors are read into the model's and the optimizers' own memory. Random numbers come last, since
reading may use some.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.state_dict import set_model_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as read_tensors

from caboose.checkpoints import layout, manifest, plain
from caboose.checkpoints.errors import CheckpointFailed, CheckpointRefused
from caboose.checkpoints.exchange import Exchange
from caboose.checkpoints.manifest import Manifest
from caboose.checkpoints.run_state import BUFFERS, RANDOM, RunState, set_random_state
from caboose.checkpoints.storage import Index, Reader, read_index

logger = logging.getLogger("caboose")


@dataclass(frozen=True)
class LoadedCheckpoint:
    """What a run continues from."""

    path: Path
    step: int
    """The step after which it was saved: `start_step` of the resumed run."""
    model_step: int
    world: int
    """The number of ranks that wrote it."""
    lost: tuple[str, ...] = ()
    """What was not loaded, because another number of ranks wrote it or the run has no such part."""


@dataclass
class _Contents:
    """A checkpoint's plain values for this rank."""

    index: Index
    model: dict[str, plain.Tree]
    optimizers: plain.Tree
    parts: dict[str, plain.Tree]
    own: dict[str, plain.Tree]
    own_tensors: dict[str, torch.Tensor]


def load(
    path: Path, state: RunState, exchange: Exchange, *, allow_other_world: bool = False, strict: bool = True
) -> LoadedCheckpoint:
    """Loads the checkpoint's state into the run. A collective.

    CheckpointRefused, on all ranks and before anything was changed, if it is not complete, not of this model and these
    optimizers, or was written by another number of ranks (unless `allow_other_world`: then each rank's own state, such
    as random numbers, stays as it is). `strict` also requires the same precision, scheduler, scaler and extras.
    """
    manifests: list[Manifest] = []
    read: list[_Contents] = []
    targets: dict[str, Any] = {}

    def check() -> None:
        described = manifest.read(path)
        manifest.check_sizes(path, described)
        names = sorted(described.files)
        manifest.check_sums(path, described, names[exchange.rank :: exchange.world])
        if not allow_other_world:
            manifest.check_world(path, described, exchange.world)
        manifests.append(described)

    exchange.agree(f"checking {path}", check)
    described = manifests[0]
    is_own_read = described.world == exchange.world
    exchange.agree(
        f"reading {path}", lambda: read.append(_read(path, described, exchange.rank, is_own_read=is_own_read))
    )
    contents = read[0]
    # Separate from the files' checks, since FSDP1's state dicts are collectives: all ranks take them, or none.
    exchange.agree(
        f"checking {path}", lambda: targets.update(_targets(path, state, contents, described, strict=strict))
    )
    try:
        read_tensors(
            targets,
            storage_reader=Reader(path, contents.index),
            planner=DefaultLoadPlanner(flatten_state_dict=False),
            process_group=exchange.group,
            no_dist=exchange.group is None,
        )
    except CheckpointException as error:
        first = min(error.failures)
        raise CheckpointFailed(
            f"{path}: reading failed on rank {first}, and the run's state is neither the old nor the new one: "
            f"{error.failures[first][0]}"
        ) from None
    exchange.agree(f"taking over {path}", lambda: _put_back(state, contents, targets))
    taken = {*contents.parts, *contents.own}
    lost = tuple(
        name for name in (*described.parts, RANDOM) if name not in taken or name not in {*state.things, RANDOM}
    )
    if lost and exchange.rank == 0:
        logger.warning("caboose: %s is loaded without %s", path, ", ".join(lost))
    return LoadedCheckpoint(path, described.step, described.model_step, described.world, lost)


def _read(path: Path, described: Manifest, rank: int, *, is_own_read: bool) -> _Contents:
    try:
        shared = json.loads((path / layout.SHARED).read_bytes())
        own: dict[str, plain.Tree] = {}
        own_tensors: dict[str, torch.Tensor] = {}
        if is_own_read:
            own = json.loads((path / f"rank-{rank}.json").read_bytes())
            own_tensors = torch.load(path / f"rank-{rank}.pt", map_location="cpu", weights_only=True)
        index = read_index(path, described)
        return _Contents(index, shared["model"], shared["optimizers"], shared["parts"], own, own_tensors)
    except CheckpointRefused:
        raise
    except Exception as error:  # noqa: BLE001 - decoders raise anything on unexpected data
        raise CheckpointRefused(path, f"it cannot be read: {_in_a_line(error)}") from None


def _targets(path: Path, state: RunState, contents: _Contents, described: Manifest, *, strict: bool) -> dict[str, Any]:
    """The memory to read the tensors into; refuses a checkpoint of another run."""
    model = state.model_tensors()
    missing, unknown = sorted(model.keys() - contents.model), sorted(contents.model.keys() - model)
    if missing or unknown:
        says = [f"it lacks {_some(missing)}"] * bool(missing) + [f"the model lacks {_some(unknown)}"] * bool(unknown)
        raise CheckpointRefused(path, f"it is of another model: {' and '.join(says)}")
    targets: dict[str, Any] = {}
    for key, value in model.items():
        stored = contents.index.get(f"model.{key}")
        if stored is None:
            continue
        if stored.size != tuple(value.shape):
            shapes = f"{list(stored.size)} in it and {list(value.shape)} in the model"
            raise CheckpointRefused(path, f"it is of another model: {key} is {shapes}")
        if strict and stored.torch_dtype != value.dtype:
            types = f"{stored.dtype} in it and {str(value.dtype).removeprefix('torch.')} in the model"
            raise CheckpointRefused(path, f"{key} is {types}; strict=False converts it")
        targets[f"model.{key}"] = value
    objection = state.optimizers.objection(contents.optimizers)
    if objection:
        raise CheckpointRefused(path, objection)
    try:
        targets.update(state.optimizers.targets(contents.optimizers, contents.index))
    except ValueError as error:
        raise CheckpointRefused(path, str(error)) from None
    if strict and set(described.parts) != set(state.things):
        there, here = _some(described.parts) or "nothing", _some(sorted(state.things)) or "nothing"
        raise CheckpointRefused(
            path, f"it holds the state of {there} and the run has {here}; strict=False takes what both have"
        )
    for name, thing in state.things.items():
        targets.update(_part_targets(name, thing, contents))
    return targets


def _part_targets(name: str, thing: Any, contents: _Contents) -> dict[str, Any]:
    """Sharded tensors are read into the object's own; whole ones are made and passed to its load_state_dict."""
    here: dict[str, torch.Tensor] = {}
    plain.encode(thing.state_dict(), f"part.{name}", here)
    targets = {}
    for key in plain.keys_in(contents.parts.get(name, contents.own.get(name))):
        stored = contents.index.get(key)
        if stored is not None:  # else it is in the rank's own file
            is_sharded = key in here and plain.is_sharded(here[key])
            targets[key] = here[key] if is_sharded else torch.zeros(stored.size, dtype=stored.torch_dtype)
    return targets


def _put_back(state: RunState, contents: _Contents, tensors: Mapping[str, Any]) -> None:
    everything = {**tensors, **contents.own_tensors}
    model = plain.decode({"is": "dict", "of": list(contents.model.items())}, tensors)
    model.update(plain.decode(contents.own[BUFFERS], everything) if BUFFERS in contents.own else {})
    set_model_state_dict(state.model, model)
    state.optimizers.restore(contents.optimizers, tensors)
    for name, thing in state.things.items():
        tree = contents.parts.get(name, contents.own.get(name))
        if tree is not None:
            thing.load_state_dict(plain.decode(tree, everything))
    if RANDOM in contents.own:
        set_random_state(plain.decode(contents.own[RANDOM], everything))


def _in_a_line(error: Exception) -> str:
    """The message of an error, without the pages that torch adds."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
