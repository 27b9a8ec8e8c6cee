"""Builds what `attach(rollback="auto")` adds to a run.

Design
------
Everything that can be refused is refused before anything is opened: support, arguments, memory. Then the only
collective of an attach, the broadcast of `group`; then the helper's thread. A rank that refuses alone (its host has
too little memory) raises, and the launcher ends the others, as with any error before training.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from caboose.observe.loader import BatchSkip
from caboose.report.session import Session
from caboose.rollback.applied_clip import AppliedClip
from caboose.rollback.brake import Brake
from caboose.rollback.budget import Limits
from caboose.rollback.collaborators import Hunts, Saves
from caboose.rollback.coordinator import Coordinator
from caboose.rollback.group import open_group
from caboose.rollback.ring import HISTORY_SECONDS, Ring
from caboose.rollback.training_state import TrainingState
from caboose.settings.environment import Settings
from caboose.settings.options import Rollback

BUDGET_SHARE = 0.5
"""Share of the agent's budget that snapshots may take: 0.5 % of a step by default."""


def engage(
    session: Session,
    skip: BatchSkip,
    model: torch.nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    settings: Settings,
    rollback: Rollback,
    *,
    schedulers: Sequence[Any],
    scaler: Any,
    extra: Sequence[Any] | Mapping[str, Any],
    checkpointer: Saves | None,
    hunter: Hunts | None,
) -> Brake:
    """A brake that takes snapshots and accepts commands from the first step on."""
    rank, world = session.identity.rank, session.identity.world
    things = list(extra.values()) if isinstance(extra, Mapping) else list(extra)
    moved = [thing for thing in things if not _is_loader(thing)]
    state = TrainingState(model, optimizers, schedulers=schedulers, scaler=scaler, extra=moved, world=world)
    ring = Ring(
        state,
        every=rollback.snapshots.every,
        keep=rollback.snapshots.keep,
        max_host_gb=rollback.snapshots.max_host_gb,
        num_local_ranks=_num_local_ranks(world),
        dedupe=rollback.snapshots.dedupe,
        budget=budget if (budget := settings.overhead_budget) >= 1 else budget * BUDGET_SHARE,
        history_seconds=HISTORY_SECONDS,
    )
    try:
        group = open_group(rank, world)
    except BaseException:
        ring.close()
        raise
    brake = Brake(
        session,
        ring,
        skip,
        group=group.nonce,
        lr_policy=rollback.lr,
        has_secret=settings.secret is not None,
        checkpointer=checkpointer,
        hunter=hunter,
        clip=AppliedClip(model, optimizers, scaler=scaler, world=world),
    )
    brake.engage(
        Coordinator(
            group.open_store,
            brake,
            rank=rank,
            world=world,
            group=group.nonce,
            key=group.key,
            secret=settings.secret,
            start_step=session.count.step,
            limits=Limits(max_rollbacks=rollback.budget, cool_steps=rollback.cooldown_steps),
            on_answer=brake.answer,
        )
    )
    return brake


def _is_loader(thing: Any) -> bool:
    """A data loader: it may be in `extra` for the checkpoints, but a rollback never takes data back."""
    return hasattr(thing, "__iter__") and hasattr(thing, "dataset")


def _num_local_ranks(world: int) -> int:
    """The number of ranks on this host, which share its memory."""
    for name in ("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE"):
        text = os.environ.get(name, "")
        if text.isdecimal() and int(text):
            return min(world, int(text))
    return world
