"""The snapshots in host memory: takes them, checks them, and restores one of them.

Design
------
`take`, `passed`, `is_due` and `restore` are called on the training thread at a step boundary; `held`, `why_not`, `pin`
and `unpin` on any. A snapshot costs the training thread one copy of the state into existing memory. The rest is done by
the inspector's thread: buffers are made as soon as the optimizer has its states, long before the first snapshot is due;
each snapshot gets its checksum and is checked for numbers that are not finite; a pinned one is summed again, so that
`restore` need not do it while all ranks wait.

Only `restore` raises into the training. It is only called when all ranks have agreed to act, and raises
`RollbackFailed` before it has touched anything if the snapshot is damaged. If memory is short or a tensor cannot be
kept, the ring switches itself off and logs it; `held` is then empty, and no command will ask for anything.
"""

import logging
import time
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import torch

from caboose.rollback import host_memory
from caboose.rollback.borrow_weights import lent
from caboose.rollback.cadence import BUDGET, Cadence
from caboose.rollback.checksum import checksum, inspect
from caboose.rollback.device_copy import Lane, PendingCopy
from caboose.rollback.errors import RollbackFailed
from caboose.rollback.inspector import Inspector
from caboose.rollback.moments import growth
from caboose.rollback.retention import REACH, SnapshotShelf
from caboose.rollback.slots import Layout, Slot, new_buffer
from caboose.rollback.training_state import LearningRates, TrainingState
from caboose.tensors.tensor_tree import Parts, Tensors
from caboose_wire import Held

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from caboose.rollback.shard_owners import Owners

logger = logging.getLogger("caboose")

EVERY = 10
KEEP = 3
HISTORY_SECONDS = 8.0
"""Time that the snapshots reach back at least, however fast the steps are: until a fault is found, and holds them."""
PREPARE_AFTER = 2
"""Steps after which the optimizers have their states and buffers can be made."""


class Ring:
    """The snapshots of one rank."""

    def __init__(
        self,
        state: TrainingState,
        *,
        every: int = EVERY,
        keep: int = KEEP,
        history_seconds: float = HISTORY_SECONDS,
        max_host_gb: float | None = None,
        num_local_ranks: int = 1,
        dedupe: bool = False,
        group: "ProcessGroup | None" = None,
        budget: float = BUDGET,
    ) -> None:
        self._state = state
        self._cadence = Cadence(every, budget, history_seconds / REACH)
        self._num_local_ranks = num_local_ranks
        self._owners = _owners(state, group) if dedupe else None
        self._owner_of: dict[str, int] = {}
        self._shelf = SnapshotShelf(keep)
        self._inspector = Inspector()
        self._whole: Layout | None = None
        """Of all tensors; with dedupe a slot holds only part of them."""
        self._layout: Layout | None = None
        self._num_steps = 0
        self._device_seconds = 0.0
        self._verified: tuple[Slot, int] | None = None
        self._lr_scale = 1.0
        self.why_off = ""
        """Why no snapshots are taken, if none are."""
        self.hold = False
        """Something is wrong with the run: no new snapshots, which would only replace the good ones.

        The daemon knows when the fault began, and goes back to before that.
        """
        self.lr_changes: list[str] = []
        """Learning rates that the last `restore` set back to their schedule."""
        self.moments_growth: float | None = None
        """Size of the optimizer's moments in the pinned snapshot over that in the one before it; None if not known."""
        self.last_seconds = 0.0
        """Seconds of the last snapshot on the training thread."""
        num_divided = host_memory.estimate(state.num_parameter_bytes, state.optimizers)
        num_extra = state.num_extra_bytes()
        if self._owners is not None:
            num_divided //= self._owners.world
        self.num_bytes = num_divided + state.num_buffer_bytes + num_extra
        """Size of a snapshot on this rank; an estimate until the first."""
        self._limit = host_memory.limit_bytes(max_host_gb)
        excess = self._excess(self.num_bytes, num_extra)
        if excess:
            raise ValueError(f"attach(rollback='auto'): {excess}")
        self._lane = Lane(state.device, state.optimizers)  # last, because it may add hooks to the optimizers

    def _excess(self, num_bytes: int, num_extra: int = 0) -> str:
        return host_memory.excess(num_bytes, self._shelf.num_slots, self._num_local_ranks, self._limit, num_extra)

    @property
    def every(self) -> int:
        """The cadence in force."""
        return self._cadence.every

    @property
    def held(self) -> tuple[Held, ...]:
        """All snapshots, oldest first."""
        return self._shelf.held

    def fingerprint(self) -> int | None:
        """Bit-exact over the current parameters, equal on all ranks; None if each rank has its own."""
        return self._state.fingerprint()

    def passed(self, step: int, seconds: float) -> None:
        """Adds the time of a step; called at every boundary, before `is_due`."""
        self._cadence.passed(seconds)
        self._num_steps += 1
        if self._num_steps == PREPARE_AFTER and not self.why_off:
            self._prepare()

    def is_due(self, step: int) -> bool:
        """Whether a snapshot should be taken at the boundary after this step."""
        return self._cadence.is_due(step) and not self.hold and not self.why_off

    def _prepare(self) -> None:
        try:
            layout = self._lay_out(self._state.capture().parts)
        except Exception as error:  # noqa: BLE001 - a user's own state_dict may raise anything
            self._switch_off(f"{error!r}")
            return
        if layout is not None:
            self._inspector.put(lambda: self._make_slots(layout.num_bytes))

    def _make_slots(self, num_bytes: int) -> None:
        while not self.why_off and self._shelf.reserve():
            self._shelf.add_spare(Slot(new_buffer(num_bytes, is_pinned=self._lane.is_pinned)))

    def _lay_out(self, parts: Parts) -> Layout | None:
        """The layout for these tensors; None if it would be too large, which switches the ring off."""
        if self._layout is not None and self._whole is not None and self._whole.fits(parts.tensors):
            return self._layout
        self._whole = self._layout = Layout(parts, parts.tensors, self._state.is_checked)
        if self._owners is not None:
            self._owner_of = self._owners.divide(parts.tensors)
            mine = [n for n in parts.tensors if self._owner_of.get(n, self._owners.rank) == self._owners.rank]
            self._layout = Layout(parts, mine, self._state.is_checked)
        self.num_bytes = self._layout.num_bytes
        excess = self._excess(self.num_bytes)
        if excess:
            self._switch_off(excess)
            return None
        return self._layout

    def _switch_off(self, reason: str) -> None:
        self.why_off = reason
        self._shelf.clear()
        logger.warning("caboose: no snapshots are taken, so nothing can be rolled back in memory: %s", reason)

    def take(self, step: int, model_step: int) -> bool:
        """Takes a snapshot of the state after this step; returns whether there is one now."""
        if self.why_off:
            return False
        if self._shelf.find(step) is not None:
            return True
        began = time.perf_counter()
        slot = None
        try:
            captured = self._state.capture()
            layout = self._lay_out(captured.parts)
            if layout is None:
                return False
            slot, is_new = self._room(step, layout.num_bytes)
            if slot is None:
                return False
            slot.num_uses += 1
            slot.lay_out(layout)
            names = list(layout.specs)
            passage = self._lane.out(names, slot.views, captured.parts.tensors)
        except Exception as error:  # noqa: BLE001 - as above; memory may be short, too
            self._switch_off(f"{error!r}")
            return False
        assert self._whole is not None, "it has just been laid out"
        slot.fill(captured.rest, self._whole, self._owner_of)
        slot.step, slot.model_step, slot.lr_scale = step, model_step, self._lr_scale
        slot.time = time.time()
        self._shelf.put(slot)
        uses = slot.num_uses
        self._inspector.put(lambda: self._look_through(slot, uses, passage))
        self.last_seconds = time.perf_counter() - began
        # The cost of making a buffer here does not predict the next snapshot's.
        self._cadence.cost(None if is_new else self.last_seconds + self._device_seconds)
        return True

    def _room(self, step: int, num_bytes: int) -> tuple[Slot | None, bool]:
        slot = self._shelf.take_spare()
        if slot is None and self._shelf.reserve():
            return Slot(new_buffer(num_bytes, is_pinned=self._lane.is_pinned)), True
        return slot or self._shelf.evict(step, self.every), False

    def _look_through(self, slot: Slot, num_uses: int, passage: PendingCopy) -> None:
        self._device_seconds = passage.wait()
        total, is_finite = inspect(slot.buffer, slot.layout.regions)
        self._shelf.note(slot, num_uses, "" if is_finite else "not finite", total)

    def why_not(self, step: int) -> str:
        """Why this snapshot could not be restored, or nothing; takes microseconds."""
        return self._why_not(step, self._shelf.find(step))

    def _why_not(self, step: int, slot: Slot | None) -> str:
        if slot is None:
            return f"no snapshots are held: {self.why_off}" if self.why_off else f"no snapshot of step {step} is held"
        if slot.health == "unchecked":
            return f"the snapshot of step {step} is still being checked"
        return f"the snapshot of step {step} is {slot.health}" if slot.health else ""

    def pin(self, step: int) -> str:
        """Keeps this snapshot until `unpin`, and has it checked again; returns the reason if it cannot."""
        reason = self._shelf.pin(step, lambda slot: self._why_not(step, slot))
        if not reason and (slot := self._shelf.find(step)) is not None:
            self._inspector.put(lambda: self._verify(slot, slot.num_uses))
            self._inspector.put(lambda: self._compare_moments(slot))
        return reason

    def is_off_schedule(self) -> bool:
        """Whether a learning rate left its schedule since the newest snapshot; on the sender's thread."""
        held = self._shelf.held
        slot = self._shelf.find(held[-1].step) if held else None
        return slot is not None and self._state.is_off_schedule(slot.rest)

    def caveat(self, step: int, lr: LearningRates) -> str:
        """What may go wrong again after going back to this snapshot, or nothing; takes microseconds."""
        slot = self._shelf.find(step)
        change = None if slot is None else self._state.schedule_change(slot.rest)
        if change is None:
            return ""
        what = f"the schedule raised the learning rate from {change[0]:.3g} to {change[1]:.3g} since step {step}"
        return f"{what} and {'will do so again' if lr == 'rewind' else 'stays there'} after the rollback"

    def unpin(self) -> None:
        """Ends the protection of the pinned snapshot."""
        self._verified = None
        self._shelf.unpin()
        if self.why_off:
            self._shelf.clear()

    def drop_newer(self, step: int) -> None:
        """Drops all snapshots taken after this step: the run went back to before them."""
        self._shelf.drop_newer(step)

    def _compare_moments(self, slot: Slot) -> None:
        """Notes whether the optimizer's moments in this snapshot carry the trace of a spike."""
        self.moments_growth = None
        older = [held.step for held in self.held if held.step < slot.step and not self.why_not(held.step)]
        before = self._shelf.find(older[-1]) if older else None
        if before is not None and self._owners is None and before.layout is slot.layout:
            self.moments_growth = growth(slot, before)

    def _verify(self, slot: Slot, num_uses: int) -> None:
        if checksum(slot.buffer, slot.layout.regions) != slot.checksum:
            self._shelf.note(slot, num_uses, "damaged")
        self._verified = (slot, num_uses)

    def restore(self, step: int, *, lr: LearningRates = "keep", replay: bool = False) -> int:
        """Restores the state of this snapshot, in place, and returns its age (`model_step`).

        `lr="keep"` leaves learning rates and scheduler as they are, "rewind" restores them as well; `replay` also
        restores random numbers. With shared snapshots (dedupe) this is collective.
        """
        slot = self._shelf.find(step)
        problem = self._why_not(step, slot)
        if slot is not None and not problem:
            if self._verified != (slot, slot.num_uses):
                self._verify(slot, slot.num_uses)
            problem = self._why_not(step, slot)
        with torch.no_grad():
            targets: Tensors = {}
            if slot is not None and not problem:
                try:
                    self._state.settle()
                    live = self._state.capture().parts
                    targets, objects = slot.whole.targets(live, lambda name: self._state.is_kept(name, lr))
                except RollbackFailed as error:
                    problem = str(error)
                except Exception as error:  # noqa: BLE001 - a user's state_dict; ranks that share must all learn of it
                    problem = f"the current state could not be read: {error!r}"
            if self._owners is not None:
                self._owners.agree(problem)
            if problem or slot is None:
                raise RollbackFailed(problem)
            mine = [name for name in targets if name in slot.layout.specs]
            self._lane.back([targets[name] for name in mine], slot.views(mine))
            if self._owners is not None:
                self._owners.give_back(slot, targets)
            try:
                self._state.put_back(slot.rest, objects, lr=lr, replay=replay)
                if lr == "rewind" and slot.lr_scale != self._lr_scale:
                    self._state.scale_lr(self._lr_scale / slot.lr_scale)
                self.lr_changes = self._state.follow_schedule(slot.rest) if lr == "keep" else []
            except Exception as error:
                raise RollbackFailed(f"the snapshot of step {step} could not be restored: {error!r}") from error
        return slot.model_step

    def newest_before(self, step: int) -> int | None:
        """The newest snapshot from before this step that this rank could use alone."""
        if self._owners is not None:
            return None  # part of it is on other ranks
        sound = [held.step for held in self.held if held.step < step and not self.why_not(held.step)]
        return max(sound, default=None)

    def lend(self, step: int) -> AbstractContextManager[None]:
        """The model with this snapshot's weights, within a block (see `borrow_weights`)."""
        slot = self._shelf.find(step)
        problem = self._why_not(step, slot)
        if slot is not None and not problem:
            if self._verified != (slot, slot.num_uses):
                self._verify(slot, slot.num_uses)
            problem = self._why_not(step, slot)
        return lent(slot, self._state, self._lane, self._owners, problem)

    def scale_lr(self, factor: float) -> str:
        """Multiplies all learning rates for good, also those that a later `restore` rewinds to.

        Returns why that may not last, or nothing.
        """
        doubt = self._state.scale_lr(factor)
        self._lr_scale *= factor
        return doubt

    def unknown_schedule(self) -> str:
        """Why scaled learning rates would not stay scaled, or nothing; takes microseconds."""
        return self._state.unknown_schedule()

    def close(self) -> None:
        """Ends the thread and frees the memory."""
        self.why_off = self.why_off or "the run is over"
        self._lane.close()
        self._inspector.close()
        self.unpin()


def _owners(state: TrainingState, group: "ProcessGroup | None") -> "Owners":
    from caboose.rollback.shard_owners import Owners

    if not state.is_replicated or not torch.distributed.is_initialized():
        raise ValueError(
            "Snapshots(dedupe=True): ranks can share snapshots only of a model that is equal on all of them, "
            "wrapped in DistributedDataParallel; leave it out, sharded models have nothing to share"
        )
    return Owners(group, state.device)
