"""The messages of rollback: what a rank holds, what the daemon asks of all ranks, and where to resume from."""

from typing import Annotated, Literal

import msgspec

from caboose_wire.fields import Count, JobName, Name, Nonce, Text, Time

RollbackMode = Literal["off", "advise", "auto"]
"""What may be done to a run: nothing, say what would be done, do it. In force is the lower of the two sides'."""

CommandKind = Literal["rollback", "snapshot", "checkpoint", "scale_lr", "stop", "hunt"]


class Ack(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A rank's answer to a command: that it is ready or refuses, then what became of it."""

    command: Count
    outcome: Literal["accepted", "refused", "done", "aborted", "failed"]
    """accepted: armed, waits for the boundary. refused: vetoed, see `detail`. aborted: not all ranks were ready."""
    detail: Text = ""
    step: Count = 0
    """The boundary the rank was at."""
    seconds: float = 0.0
    """How long the training thread was held up."""


class Held(msgspec.Struct, frozen=True, array_like=True):
    """A snapshot that a rank holds in memory."""

    step: Count
    model_step: Count
    time: Time
    is_ready: bool = True
    """False in quarantine, and where it was found not finite or damaged."""
    is_far: bool = False
    """Kept longer than the others, for faults that are noticed late."""


class Holdings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a rank could go back to and what it would allow; sent when that changes, and after each Hello."""

    group: Nonce
    """Made by rank 0 at attach and equal on all ranks; a command names it, so an old one is never obeyed."""
    last_number: Count = 0
    """The highest number of a command this rank has seen."""
    snapshots: Annotated[tuple[Held, ...], msgspec.Meta(max_length=64)] = ()
    snapshot_every: Count = 0
    """The cadence in force; the agent stretches it when it costs too much."""
    num_bytes: Count = 0
    """Of one snapshot, on this rank."""
    snapshot_seconds: float = 0.0
    """What the last snapshot took on the training thread."""
    budget_left: Count = 0
    cool_until: Count = 0
    """No rollback is accepted at a boundary before this step."""
    can_skip: bool = False
    """Whether a loader is watched, so that batches can be skipped."""
    can_checkpoint: bool = False
    can_hunt: bool = False
    """Whether the last batches are kept, and hunts are left."""


class Command(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the daemon asks the ranks to do, all at one step boundary or none. Signed (see `signing`)."""

    number: Count
    """Strictly increasing within a group."""
    kind: CommandKind
    group: Nonce = msgspec.field(name="incarnation")
    """The group it is for (`Holdings.group`); on the wire it is called `incarnation`."""
    world: Count = 0
    boundary: Count = 0
    """The step after which all act."""
    target: Count = 0
    """The snapshot to go back to, or to hunt on (`Held.step`); 0 for a hunt on the weights as they are."""
    onset: Count = 0
    """The step whose batch a hunt runs again."""
    skip: Count = 0
    """Steps whose batches are dropped afterwards."""
    lr_scale: float = 1.0
    expires: Time = 0.0
    reason: Name = ""
    mac: Annotated[bytes, msgspec.Meta(max_length=64)] = b""


class Terms(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the daemon allows and knows of this run: sent after a Hello, and when it changes."""

    rollback: RollbackMode = "advise"
    is_signed: bool = False
    """Whether the daemon has the secret to sign commands with."""
    is_holding: bool = False
    """Something is wrong with the run: take no snapshots now, they would push out the healthy ones."""
    tainted: Annotated[tuple[Count, ...], msgspec.Meta(max_length=256)] = ()
    """Steps of the run's checkpoints that trouble is known to be in: the first to go."""
    best: Count | None = None
    """Step of the checkpoint with the best validation: never to go."""
    healthy: Count | None = None
    """Step of the newest checkpoint that the run was quiet after for long enough: never to go, as all newer ones may
    turn out to be tainted."""


class PlanRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A process that is about to resume asks where from; it has not said Hello yet and need not."""

    job: JobName
    world: Count = 0


class PlannedCheckpoint(msgspec.Struct, frozen=True, array_like=True):
    """A checkpoint on disk, as the daemon's ledger knows it."""

    path: Annotated[str, msgspec.Meta(max_length=4096)]
    step: Count
    health: Literal["healthy", "unproven", "tainted"]
    reason: Name = ""
    is_best: bool = False
    """Whether its validation is the best so far."""
    lr_scale: float | None = None
    """What the learning rate is multiplied by if it is this one that is resumed from; None: as the plan says."""


class Plan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where to resume from, best first, and what to do differently this time."""

    job: JobName
    checkpoints: Annotated[tuple[PlannedCheckpoint, ...], msgspec.Meta(max_length=100)] = ()
    skip: Annotated[tuple[tuple[Count, Count], ...], msgspec.Meta(max_length=100)] = ()
    """Steps whose batches should not be seen again, as first and last."""
    lr_scale: float = 1.0
    reason: Text = ""
