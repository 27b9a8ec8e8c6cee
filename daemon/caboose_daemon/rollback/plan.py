"""Answers a process that is about to resume: from which checkpoint, past which batches, at what learning rate.

Design
------
The newest checkpoint that is not tainted loses the least. Only where the run broke, and going back in memory did not
help, are checkpoints that were proven healthy put before newer ones. Tainted ones come last, with their reason: whoever
resumes may know better. Batches are not to be seen again where the run did not get over them by itself. All of these
are told, also those before the first checkpoint: if that one's files are gone, whoever resumes takes an older one.

Learning rates were scaled while the run went on, and a checkpoint has what was in force when it was saved: so each has
a scale of its own, of all that came after it. Batches are told as whoever resumes counts them, one a step from the
checkpoint on: what was dropped in process lies between the steps, and moves all that came after.
"""

from collections.abc import Callable, Sequence

from caboose_daemon.rollback_state.ledger import Ledger, LedgerEntry, Trouble
from caboose_wire import Plan, PlannedCheckpoint

MAX_PLANNED = 100
BEFORE = 5
"""Steps before the onset whose batches are suspects as well."""


def make_plan(
    job: str,
    ledger: Ledger,
    troubles: list[Trouble],
    *,
    exhausted: str = "",
    lr_scale_of: Callable[[LedgerEntry | None], float] = lambda entry: 1.0,
    drops: Sequence[tuple[int, int]] = (),
    world: int = 0,
) -> Plan:
    """The plan; `troubles` are those that the run did not get over by itself.

    `lr_scale_of` says what has been done to the learning rate since a checkpoint was saved, or since the beginning;
    `drops` are steps after which batches were dropped, and how many.
    """
    entries = ranked(ledger, exhausted)[:MAX_PLANNED]
    first = entries[0] if entries else None
    since = 0 if first is None else first.step
    skip = [
        (_counted(max(1, trouble.began - BEFORE), drops, since), _counted(trouble.ended, drops, since))
        for trouble in sorted(troubles, key=lambda trouble: trouble.began)
        if trouble.ended is not None and trouble.ended > 0
    ]
    skip += [(_counted(after, drops, since) + 1, _counted(after, drops, since) + num) for after, num in drops]
    return Plan(
        job=job,
        checkpoints=tuple(
            PlannedCheckpoint(e.name, e.step, e.health, e.reason, e.is_best, lr_scale_of(e)) for e in entries
        ),
        skip=tuple(_merged(sorted(skip)))[-MAX_PLANNED:],
        lr_scale=lr_scale_of(first),
        reason=_reason(job, first, exhausted, world)[:4096],
    )


def ranked(ledger: Ledger, exhausted: str = "") -> list[LedgerEntry]:
    """The checkpoints, the first to be tried first."""
    order = {"healthy": 0, "unproven": 1 if exhausted else 0, "tainted": 2}
    return sorted(ledger.checkpoints, key=lambda entry: (order[entry.health], -entry.step))


def _reason(job: str, first: LedgerEntry | None, exhausted: str, world: int) -> str:
    if first is None:
        return f"no checkpoint of {job} is known here"
    reason = f"the checkpoint of step {first.step} is {first.health}"
    if first.health == "tainted":
        reason = f"{reason} ({first.reason}), and no better one is known"
    if exhausted:
        reason = f"{reason}; {exhausted}"
    if world and first.world and world != first.world:
        reason = f"{reason}; it was saved by {first.world} ranks, and {world} ask"
    return reason


def _counted(step: int, drops: Sequence[tuple[int, int]], since: int) -> int:
    """Which batch a step had, counted one a step from the checkpoint on."""
    return step + sum(num for after, num in drops if since <= after < step)


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for first, last in ranges:
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return merged
