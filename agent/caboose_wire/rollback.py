"""The messages of rollback: a rank's snapshots, the daemon's commands, and the plan for a resume."""

from typing import Annotated, Literal

import msgspec

from caboose_wire.fields import Count, JobName, Name, Nonce, Seconds, Text, Time

RollbackMode = Literal["off", "advise", "auto"]
"""What may be done to a run: nothing, advice only, act. The lower of the daemon's and the run's mode is in force."""

CommandKind = Literal["rollback", "snapshot", "checkpoint", "scale_lr", "clip", "stop", "hunt"]


class Ack(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A rank's answer to a command: ready or refused, then the outcome."""

    command: Count
    outcome: Literal["accepted", "refused", "done", "aborted", "failed"]
    """accepted: armed, waits for the boundary. refused: vetoed, see `detail`. aborted: not all ranks were ready."""
    detail: Text = ""
    step: Count = 0
    """The boundary the rank was at."""
    seconds: Seconds = 0.0
    """How long the training thread was paused."""


class Held(msgspec.Struct, frozen=True, array_like=True):
    """A snapshot in a rank's memory."""

    step: Count
    model_step: Count
    time: Time
    is_ready: bool = True
    """False until it is checked, or if not finite or damaged."""
    is_far: bool = False
    """Kept longer than others, for faults detected late."""


class Holdings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A rank's snapshots and limits; sent on change, and after each Hello."""

    group: Nonce
    """Made by rank 0 at attach and equal on all ranks; commands name it, so an old command is never carried out."""
    last_number: Count = 0
    """The highest command number this rank has seen."""
    snapshots: Annotated[tuple[Held, ...], msgspec.Meta(max_length=64)] = ()
    snapshot_every: Count = 0
    """Steps between two snapshots, in force; the agent increases it if snapshots cost too much."""
    num_bytes: Count = 0
    """Size of one snapshot on this rank."""
    snapshot_seconds: Seconds = 0.0
    """Time of the last snapshot on the training thread."""
    budget_left: Count = 0
    cool_until: Count = 0
    """A rollback with a boundary before this step is refused."""
    can_skip: bool = False
    """Whether a loader is watched, so that batches can be skipped."""
    can_checkpoint: bool = False
    is_off_schedule: bool = False
    """Whether a learning rate is not what its schedule (`attach(scheduler=)`) says; a rollback sets it back to that."""
    can_hunt: bool = False
    """Whether the last batches are kept, and hunts are left."""
    can_clip: bool = False
    """Whether a limit of the gradient norm can be set."""


class Command(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A command for all ranks, carried out by all at one step boundary or by none. Signed (see `signing`)."""

    number: Count
    """Strictly increasing within a group."""
    kind: CommandKind
    group: Nonce = msgspec.field(name="incarnation")
    """The group it is for (`Holdings.group`); on the wire it is called `incarnation`."""
    world: Count = 0
    boundary: Count = 0
    """The step after which all ranks act."""
    target: Count = 0
    """The snapshot to roll back to or to hunt on (`Held.step`); 0 for a hunt on the current weights."""
    onset: Count = 0
    """The step whose batch a hunt reruns."""
    skip: Count = 0
    """Steps whose batches are skipped afterwards."""
    lr_scale: float = 1.0
    max_norm: float = 0.0
    """For `clip`: the limit of the gradient norm from then on; 0 takes an earlier one away."""
    expires: Time = 0.0
    reason: Name = ""
    mac: Annotated[bytes, msgspec.Meta(max_length=64)] = b""


class Terms(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the daemon allows and knows of this run; sent after a Hello, and on change."""

    rollback: RollbackMode = "advise"
    is_signed: bool = False
    """Whether the daemon signs commands."""
    is_holding: bool = False
    """An incident is open, or the loss is off its level: take no snapshots now, so that healthy ones are kept."""
    tainted: Annotated[tuple[Count, ...], msgspec.Meta(max_length=256)] = ()
    """Steps of tainted checkpoints: deleted first."""
    best: Count | None = None
    """Step of the checkpoint with the best validation: never deleted."""
    healthy: Count | None = None
    """Step of the newest checkpoint proven healthy: never deleted, since all newer ones may become tainted."""


class PlanRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Sent by a process that is about to resume; no Hello is needed before."""

    job: JobName
    world: Count = 0


class PlannedCheckpoint(msgspec.Struct, frozen=True, array_like=True):
    """A checkpoint on disk, from the daemon's ledger."""

    path: Annotated[str, msgspec.Meta(max_length=4096)]
    step: Count
    health: Literal["healthy", "unproven", "tainted"]
    reason: Name = ""
    is_best: bool = False
    """Whether its validation is the best so far."""
    lr_scale: float | None = None
    """Learning rate factor if this one is resumed from; None: the plan's."""


class Plan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where to resume from, best first, and what to change."""

    job: JobName
    checkpoints: Annotated[tuple[PlannedCheckpoint, ...], msgspec.Meta(max_length=100)] = ()
    skip: Annotated[tuple[tuple[Count, Count], ...], msgspec.Meta(max_length=100)] = ()
    """Steps whose batches should be skipped, as (first, last)."""
    lr_scale: float = 1.0
    reason: Text = ""
