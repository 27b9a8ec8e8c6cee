"""The ledger: every snapshot and checkpoint of a job with its health, which later evidence may change.

Design
------
A saved state is *unproven* until the run that continues from it has been quiet for a while, then *healthy*. Steps
inside a bad span are not quiet, and steps of a run that continued from an earlier state do not count. A bad span whose
onset is before the state, or just after it, *taints* it for good: the state may contain the fault. Rules detect late,
so tainting works backwards in time, when an incident opens or its onset is corrected.

Snapshots are removed when no rank holds them. Checkpoints stay, up to a limit; whether their files still exist is
checked by the process that resumes. Changes are collected for the journal (`take_changes`). `step` is the loop's count,
which continues across rollbacks; a restart may repeat steps, so of two entries with one name the later counts.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from caboose_daemon.shallow import shallow
from caboose_daemon.steps.settings import as_count, as_number, as_text
from caboose_wire import Event, Held

Health = Literal["healthy", "unproven", "tainted"]
MAX_CHECKPOINTS = 1000
MAX_VALIDATIONS = 1000
RECORDED = ("checkpoint", "validation")
"""Kinds of events that the ledger keeps."""
MAX_REASON = 256
"""Characters; the limit of a name on the wire."""


class LedgerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A saved state."""

    kind: Literal["snapshot", "checkpoint"]
    name: str
    """A checkpoint's path; a snapshot's step."""
    step: int
    attempt: int
    time: float
    model_step: int | None = None
    health: Health = "unproven"
    reason: str = ""
    """Why it is tainted."""
    is_ours: bool = False
    """Whether Caboose saved it."""
    world: int | None = None
    num_bytes: int | None = None
    """Size on disk, if reported."""
    validation: float | None = None
    """The loss of the nearest validation."""
    validated_at: int | None = None
    """The step of that validation."""
    is_best: bool = False
    is_far: bool = False
    """Whether the ranks keep this snapshot longer than others."""
    is_left: bool = False
    """Whether the run continued from an earlier state, so this one cannot be proven any more."""
    is_held: bool = True
    """Whether a snapshot is still in memory on every rank; always true for a checkpoint."""


class BadSpan(msgspec.Struct, frozen=True):
    """A range of steps in which the run's numbers were broken."""

    number: int
    """The incident's number; 0 if a continuity check found it."""
    attempt: int
    began: int
    ended: int | None
    """None while it lasts."""


class Ledger:
    """The entries of one job."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str], LedgerEntry] = {}
        self._changed: dict[tuple[str, str], LedgerEntry] = {}
        self._validations: deque[tuple[int, float]] = deque(maxlen=MAX_VALIDATIONS)

    def __iter__(self) -> Iterator[LedgerEntry]:
        """Newest first."""
        return iter(sorted(self._entries.values(), key=lambda entry: (-entry.step, entry.kind)))

    @property
    def checkpoints(self) -> list[LedgerEntry]:
        """Newest first."""
        return [entry for entry in self if entry.kind == "checkpoint"]

    @property
    def snapshots(self) -> list[LedgerEntry]:
        """Those still held, newest first."""
        return [entry for entry in self if entry.kind == "snapshot" and entry.is_held]

    def restore(self, entries: Iterable[LedgerEntry]) -> None:
        """Loads entries from the journal."""
        for entry in entries:
            self._entries[entry.kind, entry.name] = entry

    def take_changes(self) -> list[LedgerEntry]:
        """Entries changed since the last call."""
        changed = list(self._changed.values())
        self._changed.clear()
        return changed

    def copy(self) -> "Ledger":
        """The same entries in a ledger of its own."""
        ledger = shallow(self)
        ledger.unshare()
        return ledger

    def unshare(self) -> None:
        """Gives it containers that no other ledger has."""
        self._entries, self._changed = dict(self._entries), dict(self._changed)
        self._validations = self._validations.copy()

    def taint_of(self, step: int) -> str:
        """Why the snapshot of this step must not be used, or an empty string."""
        entry = self._entries.get(("snapshot", str(step)))
        return entry.reason if entry is not None and entry.health == "tainted" else ""

    def hold(self, snapshots: Iterable[Held], attempt: int) -> None:
        """Replaces the list of snapshots held by all ranks."""
        held = {str(s.step): s for s in snapshots}
        for name, snapshot in held.items():
            known = self._entries.get(("snapshot", name))
            if known is not None and known.is_far != snapshot.is_far:
                self._put(msgspec.structs.replace(known, is_far=snapshot.is_far))
            if known is None:
                self._put(
                    LedgerEntry(
                        kind="snapshot",
                        name=name,
                        step=snapshot.step,
                        attempt=attempt,
                        time=snapshot.time,
                        model_step=snapshot.model_step,
                        is_far=snapshot.is_far,
                    )
                )
        for entry in list(self._entries.values()):
            if entry.kind == "snapshot" and entry.name not in held:
                del self._entries["snapshot", entry.name]
                self._changed["snapshot", entry.name] = msgspec.structs.replace(entry, is_held=False)

    def continue_from(self, step: int) -> None:
        """The run continues from the state of this step: states saved later are abandoned."""
        for entry in list(self._entries.values()):
            if entry.step > step:
                self._put(msgspec.structs.replace(entry, is_left=True))

    def declare(self, event: Event, *, is_left: bool = False) -> None:
        """Records a validation or a saved checkpoint; `is_left`: saved before a rollback that abandoned it."""
        if event.kind == "validation":
            loss = as_number(event.fields.get("loss"))
            if loss is not None and math.isfinite(loss):
                self._validations.append((event.step, loss))
                self._find_best()
            return
        path = as_text(event.fields.get("path"))
        if event.kind != "checkpoint" or not path:
            return
        self._put(
            LedgerEntry(
                kind="checkpoint",
                name=path[:4096],
                step=saved_step(event),
                attempt=event.attempt,
                time=event.time,
                model_step=as_count(event.fields.get("model_step")),
                is_ours=event.fields.get("ours") is True,
                world=as_count(event.fields.get("world")),
                num_bytes=as_count(event.fields.get("num_bytes")) or None,
                is_left=is_left,
            )
        )
        self._find_best()
        checkpoints = self.checkpoints
        for entry in checkpoints[MAX_CHECKPOINTS:]:
            del self._entries["checkpoint", entry.name]
            self._changed["checkpoint", entry.name] = msgspec.structs.replace(entry, is_held=False)

    def judge(self, spans: Iterable[BadSpan], step: int, *, margin: int, quiet: int) -> None:
        """Taints states inside or just before a bad span, and proves those followed by enough quiet steps."""
        spans = list(spans)
        is_calm = all(span.ended is not None for span in spans)
        for entry in list(self._entries.values()):
            if entry.health == "tainted":
                continue
            span = next((t for t in spans if _is_in(entry, t, margin)), None)
            if span is not None:
                where = "just before" if entry.step < span.began else "after"
                what = f"incident {span.number} began" if span.number else "the loss did not continue as before"
                reason = f"saved {where} step {span.began}, where {what}"
                self._put(msgspec.structs.replace(entry, health="tainted", reason=reason[:MAX_REASON]))
            elif is_calm and _is_provable(entry) and _num_quiet(entry, spans, step) >= quiet:
                self._put(msgspec.structs.replace(entry, health="healthy"))
        self._find_best()

    def _find_best(self) -> None:
        """Marks the checkpoint with the lowest validation loss among those that are not tainted."""
        checkpoints = [entry for entry in self._entries.values() if entry.kind == "checkpoint"]
        if not checkpoints or not self._validations:
            return
        for entry in checkpoints:
            step, loss = min(self._validations, key=lambda v: (abs(v[0] - entry.step), -v[0]))
            # The validation it already has may no longer be in the list, and still be nearer.
            known = entry.step if entry.validated_at is None else entry.validated_at
            if entry.validation is None or abs(step - entry.step) <= abs(known - entry.step):
                self._put(msgspec.structs.replace(entry, validation=loss, validated_at=step))
        checkpoints = [entry for entry in self._entries.values() if entry.kind == "checkpoint"]
        scored = [e for e in checkpoints if e.validation is not None and e.health != "tainted"]
        best = min(scored, key=lambda e: (e.validation, -e.step), default=None)
        for entry in checkpoints:
            self._put(msgspec.structs.replace(entry, is_best=entry is best))

    def _put(self, entry: LedgerEntry) -> None:
        key = (entry.kind, entry.name)
        if self._entries.get(key) != entry:
            self._entries[key] = self._changed[key] = entry


def saved_step(event: Event) -> int:
    """The step whose state a checkpoint has: of the event's fields, or that of the event."""
    step = as_count(event.fields.get("step"))
    return event.step if step is None else step


def _is_provable(entry: LedgerEntry) -> bool:
    return entry.health == "unproven" and not entry.is_left


def _num_quiet(entry: LedgerEntry, spans: Iterable[BadSpan], step: int) -> int:
    """The longest quiet range of steps since it was saved; all bad spans have ended."""
    longest, since = 0, entry.step
    for span in sorted(spans, key=lambda span: span.began):
        if span.attempt >= entry.attempt and span.ended is not None:
            longest, since = max(longest, span.began - since), max(since, span.ended)
    return max(longest, step - since)


def _is_in(entry: LedgerEntry, span: BadSpan, margin: int) -> bool:
    if entry.attempt != span.attempt:
        return False
    return entry.step > span.began - margin and (span.ended is None or entry.step <= span.ended)
