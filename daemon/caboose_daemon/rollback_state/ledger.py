"""The ledger: every snapshot and checkpoint of a job with its health, which later evidence may change.

Design
------
A state that was saved is *unproven* until the run that goes on from it was quiet for a while, then *healthy*. Steps
in trouble are not quiet, and those of a run that went back to before it, or was started anew from there, say nothing of
it. Trouble whose onset turns out to lie before it, or only just after it, *taints* it for good: it may hold what went
wrong. Rules find out late, so this works backwards in time, at the moment an incident opens or its onset is corrected.

Snapshots leave when no rank holds them any more. Checkpoints stay, within bounds: whether their files still exist is
for who resumes to see. What changed is collected for the journal (`take_changes`). `step` is the loop's, which goes on
across rollbacks; a restart may repeat steps, so of two entries with one name the later counts.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from caboose_wire import Event, Held

Health = Literal["healthy", "unproven", "tainted"]
MAX_CHECKPOINTS = 1000
MAX_VALIDATIONS = 1000
MAX_REASON = 256
"""As long as a name on the wire."""


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
    """What it takes on disk, where whoever saved it said so."""
    validation: float | None = None
    """The loss of the validation nearest to it."""
    validated_at: int | None = None
    """That validation's step."""
    is_best: bool = False
    is_far: bool = False
    """Whether the ranks keep this snapshot longer than the others."""
    is_left: bool = False
    """Whether the run went on from an earlier state, so that nothing more will be known of this one."""
    is_held: bool = True
    """Whether a snapshot is still in memory on every rank; always true of a checkpoint."""


class Trouble(msgspec.Struct, frozen=True):
    """A stretch of the run that went wrong."""

    number: int
    """The incident's; 0 where a continuity check found it."""
    attempt: int
    began: int
    ended: int | None
    """None while it goes on."""


class Ledger:
    """The entries of one job."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str], LedgerEntry] = {}
        self._changed: dict[tuple[str, str], LedgerEntry] = {}
        self._validations: deque[tuple[int, float]] = deque(maxlen=MAX_VALIDATIONS)

    def __iter__(self) -> Iterator[LedgerEntry]:
        """The newest first."""
        return iter(sorted(self._entries.values(), key=lambda entry: (-entry.step, entry.kind)))

    @property
    def checkpoints(self) -> list[LedgerEntry]:
        """Those on disk, the newest first."""
        return [entry for entry in self if entry.kind == "checkpoint"]

    @property
    def snapshots(self) -> list[LedgerEntry]:
        """Those in memory, the newest first."""
        return [entry for entry in self if entry.kind == "snapshot" and entry.is_held]

    def restore(self, entries: Iterable[LedgerEntry]) -> None:
        """Puts back what a journal kept."""
        for entry in entries:
            self._entries[entry.kind, entry.name] = entry

    def take_changes(self) -> list[LedgerEntry]:
        """What changed since the last call."""
        changed = list(self._changed.values())
        self._changed.clear()
        return changed

    def taint_of(self, step: int) -> str:
        """Why the snapshot of this step must not be gone back to, or nothing."""
        entry = self._entries.get(("snapshot", str(step)))
        return entry.reason if entry is not None and entry.health == "tainted" else ""

    def hold(self, snapshots: Iterable[Held], attempt: int) -> None:
        """These are the snapshots that all ranks hold now."""
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

    def go_on_from(self, step: int) -> None:
        """The run goes on from the state of this step: what was saved later is of a course that was left."""
        for entry in list(self._entries.values()):
            if entry.step > step:
                self._put(msgspec.structs.replace(entry, is_left=True))

    def declare(self, event: Event, *, is_left: bool = False) -> None:
        """Takes note of a validation, or of a checkpoint that was saved; `is_left`: on a course that was left since."""
        if event.kind == "validation":
            loss = event.fields.get("loss")
            if isinstance(loss, int | float) and math.isfinite(loss):
                self._validations.append((event.step, float(loss)))
                self._find_best()
            return
        path, step = event.fields.get("path"), event.fields.get("step", event.step)
        if event.kind != "checkpoint" or not isinstance(path, str) or not path:
            return
        world, model_step = event.fields.get("world"), event.fields.get("model_step")
        num_bytes = event.fields.get("num_bytes")
        self._put(
            LedgerEntry(
                kind="checkpoint",
                name=path[:4096],
                step=step if isinstance(step, int) and step >= 0 else event.step,
                attempt=event.attempt,
                time=event.time,
                model_step=model_step if isinstance(model_step, int) else None,
                is_ours=event.fields.get("ours") is True,
                world=world if isinstance(world, int) else None,
                num_bytes=num_bytes if isinstance(num_bytes, int) and num_bytes > 0 else None,
                is_left=is_left,
            )
        )
        self._find_best()
        checkpoints = self.checkpoints
        for entry in checkpoints[MAX_CHECKPOINTS:]:
            del self._entries["checkpoint", entry.name]
            self._changed["checkpoint", entry.name] = msgspec.structs.replace(entry, is_held=False)

    def judge(self, troubles: Iterable[Trouble], step: int, *, margin: int, quiet: int) -> None:
        """Taints what lies in a trouble or just before one, and proves what has been quiet since."""
        troubles = list(troubles)
        is_calm = all(trouble.ended is not None for trouble in troubles)
        for entry in list(self._entries.values()):
            if entry.health == "tainted":
                continue
            trouble = next((t for t in troubles if _is_in(entry, t, margin)), None)
            if trouble is not None:
                where = "just before" if entry.step < trouble.began else "after"
                what = f"incident {trouble.number} began" if trouble.number else "the loss did not go on as before"
                reason = f"taken {where} step {trouble.began}, where {what}"
                self._put(msgspec.structs.replace(entry, health="tainted", reason=reason[:MAX_REASON]))
            elif is_calm and _is_provable(entry) and _num_quiet(entry, troubles, step) >= quiet:
                self._put(msgspec.structs.replace(entry, health="healthy"))
        self._find_best()

    def _find_best(self) -> None:
        """Marks the checkpoint with the lowest validation loss among those that are not tainted."""
        checkpoints = [entry for entry in self._entries.values() if entry.kind == "checkpoint"]
        if not checkpoints or not self._validations:
            return
        for entry in checkpoints:
            step, loss = min(self._validations, key=lambda v: (abs(v[0] - entry.step), -v[0]))
            # The one it has may be forgotten by now, and still be nearer.
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


def _is_provable(entry: LedgerEntry) -> bool:
    return entry.health == "unproven" and not entry.is_left


def _num_quiet(entry: LedgerEntry, troubles: Iterable[Trouble], step: int) -> int:
    """The longest stretch since it was saved in which nothing was wrong; all troubles are over."""
    longest, since = 0, entry.step
    for trouble in sorted(troubles, key=lambda trouble: trouble.began):
        if trouble.attempt >= entry.attempt and trouble.ended is not None:
            longest, since = max(longest, trouble.began - since), max(since, trouble.ended)
    return max(longest, step - since)


def _is_in(entry: LedgerEntry, trouble: Trouble, margin: int) -> bool:
    if entry.attempt != trouble.attempt:
        return False
    return entry.step > trouble.began - margin and (trouble.ended is None or entry.step <= trouble.ended)
