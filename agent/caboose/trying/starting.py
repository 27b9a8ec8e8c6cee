"""Loads what a trial starts from: a checkpoint that Caboose wrote, or a file of torch.save."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from caboose.checkpoints import layout
from caboose.checkpoints.errors import CheckpointRefused
from caboose.checkpoints.resuming import load_checkpoint

OPTIMIZERS = ("optimizer", "optimizer_state_dict", "optim", "optimizer_state")


class BadStart(ValueError):
    """It cannot be started from this; the message is one line."""


def start_from(
    path: Path, model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer], schedulers: Sequence[Any]
) -> str:
    """Loads it in place; returns what was loaded. The files are only read."""
    if path.is_dir():
        if not layout.is_ours(path):
            steps = layout.steps_in(path)
            if not steps:
                raise BadStart(f"{path}: no checkpoint of Caboose")
            path = next(iter(steps.values()))
        try:
            load_checkpoint(path, model, optimizers, scheduler=list(schedulers) or None, strict=False, scale_lr=False)
        except CheckpointRefused as error:
            raise BadStart(str(error)) from None
        return f"{path.name}: weights and optimizer state"
    return _from_file(path, model, optimizers)


def _from_file(path: Path, model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> str:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise BadStart(f"{path}: {error.strerror or error}") from None
    except Exception as error:  # noqa: BLE001 - not a file of torch.save, or one with objects in it
        raise BadStart(f"{path}: cannot be read: {' '.join(str(error).split())[:200]}") from None
    names = set(model.state_dict())
    inside = [content, *content.values()] if isinstance(content, Mapping) else []
    weights = next((one for one in inside if isinstance(one, Mapping) and names & set(one)), None)
    if weights is None:
        raise BadStart(f"{path}: it holds no weights of this model")
    model.load_state_dict(weights)
    states = [content[name] for name in OPTIMIZERS if name in content]
    if states and len(optimizers) == 1:
        optimizers[0].load_state_dict(states[0])
        return f"{path.name}: weights and optimizer state"
    return f"{path.name}: weights; the optimizer starts new"
