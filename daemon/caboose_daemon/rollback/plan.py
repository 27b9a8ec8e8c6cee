"""Answers a process that is about to resume: which checkpoint, which batches to skip, which learning rate.

Design
------
The newest untainted checkpoint loses the fewest steps. Only if rollback in memory did not help are proven healthy
checkpoints ranked before newer ones. Tainted ones come last, with the reason, and may still be chosen.
Batches of bad spans that the run did not recover from are skipped. All of them are listed, also those before the first
checkpoint: if its files are gone, an older one is used.

The learning rate may have been scaled while the run continued, and a checkpoint has the rate in force when it was
saved. So each checkpoint has its own scale, of everything that came after it. Batches are counted one per step from
the checkpoint: batches dropped in process fall between the steps and shift all later ones.
"""

from collections.abc import Callable, Sequence

from caboose_daemon.rollback_state.ledger import BadSpan, Ledger, LedgerEntry
from caboose_wire import Plan, PlannedCheckpoint
from caboose_wire.codec import MAX_HEADER_BYTES

MAX_PLANNED = 100
MAX_PLAN_BYTES = MAX_HEADER_BYTES - 16 * 1024
"""For the checkpoints; the rest is for the reason and the batches to skip."""
ENTRY_BYTES = 64
"""Of a checkpoint's numbers, at most."""
MAX_PATH, MAX_REASON = 4096, 256
"""Characters that the wire allows."""
BEFORE = 5
"""Steps before the onset whose batches are skipped as well."""


def make_plan(
    job: str,
    ledger: Ledger,
    spans: list[BadSpan],
    *,
    exhausted: str = "",
    lr_scale_of: Callable[[LedgerEntry | None], float] = lambda entry: 1.0,
    drops: Sequence[tuple[int, int]] = (),
    world: int = 0,
) -> Plan:
    """The plan; `spans` are the bad spans the run did not recover from.

    `lr_scale_of` gives the learning rate factor since a checkpoint was saved, or since the start of the run. `drops`
    are (step, count): batches dropped after that step.
    """
    entries = _fitting(ranked(ledger, exhausted))
    first = entries[0] if entries else None
    since = 0 if first is None else first.step
    skip = [
        (_counted(max(1, span.began - BEFORE), drops, since), _counted(span.ended, drops, since))
        for span in sorted(spans, key=lambda span: span.began)
        if span.ended is not None and span.ended > 0
    ]
    skip += [(_counted(after, drops, since) + 1, _counted(after, drops, since) + num) for after, num in drops]
    return Plan(
        job=job,
        checkpoints=tuple(
            PlannedCheckpoint(e.name, e.step, e.health, e.reason[:MAX_REASON], e.is_best, lr_scale_of(e))
            for e in entries
        ),
        skip=tuple(_merged(sorted(skip)))[-MAX_PLANNED:],
        lr_scale=lr_scale_of(first),
        reason=_reason(job, first, exhausted, world)[:4096],
    )


def _fitting(entries: list[LedgerEntry]) -> list[LedgerEntry]:
    """The first ones, as many as fit into one message; the agent refuses a longer path."""
    fitting: list[LedgerEntry] = []
    num_bytes = 0
    for entry in entries:
        path = entry.name.encode(errors="replace")
        num_bytes += len(path) + len(entry.reason[:MAX_REASON].encode(errors="replace")) + ENTRY_BYTES
        if num_bytes > MAX_PLAN_BYTES or len(fitting) == MAX_PLANNED:
            break
        if len(entry.name) <= MAX_PATH:
            fitting.append(entry)
    return fitting


def ranked(ledger: Ledger, exhausted: str = "") -> list[LedgerEntry]:
    """The checkpoints, in the order to try them."""
    order = {"healthy": 0, "unproven": 1 if exhausted else 0, "tainted": 2}
    return sorted(ledger.checkpoints, key=lambda entry: (order[entry.health], -entry.step))


def _reason(job: str, first: LedgerEntry | None, exhausted: str, world: int) -> str:
    if first is None:
        return f"this daemon knows no checkpoint of {job}"
    reason = f"the checkpoint of step {first.step} is {first.health}"
    if first.health == "tainted":
        reason = f"{reason} ({first.reason}); no better one is known"
    if exhausted:
        reason = f"{reason}; {exhausted}"
    if world and first.world and world != first.world:
        reason = f"{reason}; saved by {first.world} ranks, requested by {world}"
    return reason


def _counted(step: int, drops: Sequence[tuple[int, int]], since: int) -> int:
    """The batch of a step, counted one per step from the checkpoint."""
    return step + sum(num for after, num in drops if since <= after < step)


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for first, last in ranges:
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return merged
