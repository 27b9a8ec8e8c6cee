"""Carries out commands on this rank: joins the snapshots, the ranks' agreement, the checkpoints and the hunts.

Design
------
`at_boundary` is called on the training thread at the end of every step, outside the monitor's guard. First the gate:
if all ranks agreed on a command for this boundary, it is carried out here, on all of them. Then a snapshot, if one is
due. A failure of a snapshot is counted and logged by the guard; only the gate may raise, and only the exceptions of
`errors`. Messages of the daemon arrive on the sender's thread (`receive`) and are only passed on.

A rollback restores parameters, buffers, optimizer, scaler and extras; the loop's step and its data continue. So the
loader drops as many batches as the command asks for, the schedule continues unless it is to go back too, and the
session starts a new attempt.
"""

import logging
import time

import torch
from torch import distributed as dist

from caboose.guard import Guard
from caboose.observe.loader import BatchSkip
from caboose.report.daemon_log import daemon_log, printable
from caboose.report.session import Session
from caboose.rollback.agreement import collective_device
from caboose.rollback.applied_clip import AppliedClip
from caboose.rollback.collaborators import Hunts, Saves
from caboose.rollback.coordinator import Coordinator
from caboose.rollback.errors import NotCarriedOut, RunStopped
from caboose.rollback.moments import TRACE
from caboose.rollback.ring import Ring
from caboose.settings.options import LrPolicy
from caboose_wire import Ack, Command, Holdings, Terms
from caboose_wire.expectation import steps_lost

logger = logging.getLogger("caboose")

SETTLED_AFTER = 20
"""Boundaries after which a step's time is the usual one."""
MAX_LR_SCALE = 100.0
"""A larger scale is refused as a mistake."""


class Brake:
    """This rank's part of what all ranks do; implements `negotiation.Actions`."""

    def __init__(
        self,
        session: Session,
        ring: Ring,
        skip: BatchSkip,
        *,
        group: str,
        lr_policy: LrPolicy = "keep",
        has_secret: bool = False,
        checkpointer: Saves | None = None,
        hunter: Hunts | None = None,
        clip: AppliedClip | None = None,
    ) -> None:
        self._session = session
        self._ring = ring
        self._skip = skip
        self._checkpointer = checkpointer
        self._hunter = hunter
        self._clip = clip
        self._group = group
        self._lr_policy: LrPolicy = lr_policy
        self._has_secret = has_secret
        self._coordinator: Coordinator | None = None
        self._terms: Terms | None = None
        self._sent: Holdings | None = None
        self._boundary_time = time.perf_counter()
        self._num_boundaries = 0
        self.guard = Guard(on_trip=ring.close)
        """For snapshots, which have their own budget."""
        self._guarded_snapshot = self.guard.protect("snapshot", self._take_if_due)

    def engage(self, coordinator: Coordinator) -> None:
        """Starts to accept commands."""
        self._coordinator = coordinator
        coordinator.start()

    def at_boundary(self, step: int) -> None:
        """Acts, if all ranks agreed to; raises only RollbackFailed and RollbackInDoubt."""
        if self._coordinator is not None:
            self._coordinator.pass_boundary(step)
        self._skip.end_step()
        self._guarded_snapshot(step)

    def _take_if_due(self, step: int) -> None:
        now = time.perf_counter()
        seconds, self._boundary_time = now - self._boundary_time, now
        self._ring.passed(step, seconds)
        self._num_boundaries += 1
        if self._num_boundaries == SETTLED_AFTER:
            self._state_expectation(seconds)
        if self._ring.is_due(step):
            self._ring.take(step, self._session.count.model_step)
            self._boundary_time = time.perf_counter()

    def _state_expectation(self, step_seconds: float) -> None:
        """Logs once, on rank 0, what a rollback is expected to lose, and what it cannot do."""
        if self._session.identity.rank or self._ring.why_off:
            return
        num = steps_lost(self._ring.every, step_seconds)
        no_loader = "; no loader is watched (monitor.watch), so no batches can be skipped"
        logger.info(
            "caboose: snapshots every %d steps: a rollback after a sudden fault loses about %d steps, and those until "
            "it is decided%s",
            self._ring.every,
            num,
            "" if self._skip.source is not None else no_loader,
        )

    def refuses(self, command: Command, step: int) -> str:
        """Why this rank could not carry it out; pins the snapshot it would go back to."""
        if command.kind in ("rollback", "scale_lr") and not 0.0 < command.lr_scale < MAX_LR_SCALE:
            return f"lr_scale is {command.lr_scale}"
        if command.kind == "rollback":
            return self._ring.pin(command.target)
        if command.kind == "scale_lr":
            return self._ring.unknown_schedule()
        if command.kind == "clip":
            return "gradients cannot be clipped here" if self._clip is None else self._clip.why_not
        if command.kind == "checkpoint" and self._checkpointer is None:
            return "there is no checkpoint directory: attach(..., checkpoints=directory)"
        if command.kind == "hunt":
            hunter = self._hunter
            if hunter is None:
                return "no batch is kept: attach(..., hunt=True) keeps the last one"
            return hunter.objection() or (self._ring.pin(command.target) if command.target else "")
        return ""

    def caveat(self, command: Command) -> str:
        """What may go wrong again afterwards, for the daemon and the log before the boundary; or nothing."""
        if command.kind != "rollback":
            return ""
        found = self._ring.caveat(command.target, self._lr_policy)
        if found and command.lr_scale == 1.0:
            logger.warning("caboose: before the rollback at step %d: %s", command.boundary, found)
            return found
        return ""

    def release(self, command: Command) -> None:
        """The command was aborted."""
        if command.kind in ("rollback", "hunt"):
            self._ring.unpin()

    def act(self, command: Command, step: int) -> str:
        """Carries the command out; all ranks are at this boundary."""
        return {
            "rollback": self._go_back,
            "snapshot": self._snapshot,
            "checkpoint": self._checkpoint,
            "scale_lr": self._scale,
            "clip": self._limit,
            "stop": self._stop,
            "hunt": self._hunt,
        }[command.kind](command, step)

    def fingerprint(self) -> int | None:
        """Of the parameters, if they must be equal on all ranks."""
        return self._ring.fingerprint()

    def _go_back(self, command: Command, step: int) -> str:
        # Before anything that may fail on one rank alone: the others would wait in this collective.
        crosses, batches = False, self._skip.batches_per_step
        if command.skip:
            crosses, batches = _compare_loaders(self._skip.length(), batches)
        model_step = self._ring.restore(command.target, lr=self._lr_policy)
        self._ring.unpin()
        self._ring.drop_newer(command.target)
        caveat = ""
        if self._ring.lr_changes:
            caveat = f", learning rate set back to its schedule: {', '.join(self._ring.lr_changes)}"
        if command.lr_scale != 1.0 and (doubt := self._ring.scale_lr(command.lr_scale)):
            # No reason to stay in a bad state, but it must be reported that the rate may not stay lower.
            caveat += f", but its learning rate may not stay scaled by {command.lr_scale:g}: {doubt}"
            logger.warning("caboose: the run went back%s", caveat)
        caveat += self._judge_moments()
        dropped = self._drop_batches(command.skip, batches, crosses_epochs=crosses)
        self._session.start_attempt(model_step)
        return f"went back from step {step} to the snapshot of step {command.target}{dropped}{caveat}"

    def _judge_moments(self) -> str:
        """Whether the restored moments of the optimizer carry the trace of a spike, as far as that is known by now."""
        ratio = self._ring.moments_growth
        if ratio is None:
            return ""
        if ratio < TRACE:
            return f", optimizer moments {ratio:.2g}x those of the snapshot before"
        text = f", optimizer moments {ratio:.2g}x those of the snapshot before: they may carry the spike's trace"
        logger.warning("caboose: the run went back%s", text)
        return text

    def _drop_batches(self, num_steps: int, batches_per_step: int, *, crosses_epochs: bool) -> str:
        if not num_steps:
            return ""
        asked = self._skip.ask(num_steps, batches_per_step=batches_per_step, crosses_epochs=crosses_epochs)
        return f", {asked} batches are skipped" if asked else ", no loader is watched: no batches are skipped"

    def _snapshot(self, command: Command, step: int) -> str:
        if not self._ring.take(step, self._session.count.model_step):
            raise NotCarriedOut(f"no snapshot could be taken: {self._ring.why_off or 'all places are in use'}")
        return f"snapshot of step {step}"

    def _checkpoint(self, command: Command, step: int) -> str:
        assert self._checkpointer is not None, "without one it was refused"
        saved = self._checkpointer.save(self._session.count.step, self._session.count.model_step)
        if saved.state == "failed":
            raise NotCarriedOut(f"checkpoint {saved.path}: {saved.error}")
        return f"checkpoint {saved.path}: {saved.state}"

    def _scale(self, command: Command, step: int) -> str:
        caveat = self._ring.scale_lr(command.lr_scale)
        return f"learning rates times {command.lr_scale:g}{'; ' * bool(caveat)}{caveat}"

    def _limit(self, command: Command, step: int) -> str:
        assert self._clip is not None, "without one it was refused"
        return self._clip.set(command.max_norm)

    def _stop(self, command: Command, step: int) -> str:
        raise RunStopped(
            f"stopped after step {step} on all ranks: {printable(command.reason) or 'asked to'}. "
            "Restart from a checkpoint; caboose.resume_plan() names it."
        )

    def _hunt(self, command: Command, step: int) -> str:
        hunter = self._hunter
        assert hunter is not None, "without one it was refused"
        try:
            result = hunter.hunt(command.onset or step, lender=self._ring, snapshot=command.target or None)
        finally:
            self._ring.unpin()
        return result.summary

    @property
    def lender(self) -> Ring:
        """The snapshots, for a hunt on this rank alone."""
        return self._ring

    @property
    def will_be_asked(self) -> bool:
        """Whether the daemon is set to `auto`, and so will ask all ranks for a hunt."""
        return self._terms is not None and self._terms.rollback == "auto"

    def receive(self, message: Command | Terms) -> None:
        """A message of the daemon; on the sender's thread."""
        if isinstance(message, Command):
            if self._coordinator is not None:
                self._coordinator.offer(message)
            return
        self._ring.hold = message.is_holding
        if self._session.sender is not None:
            self._session.sender.set_alert(message.is_holding)
        if self._terms is None or message.rollback != self._terms.rollback:
            is_less = message.rollback != "auto"
            way_out = ": start it with --rollback auto" if is_less else ""
            text = "caboose: rollback is auto here and %s at the daemon, so %s is in force%s"
            level = logging.WARNING if is_less else logging.INFO
            daemon_log.log(level, text, message.rollback, message.rollback, way_out)
        if self._has_secret and not message.is_signed and (self._terms is None or self._terms.is_signed):
            daemon_log.log(
                logging.WARNING,
                "caboose: there is a secret here and none at the daemon, so its commands will be refused: "
                "start it with --secret-file",
            )
        self._terms = message

    def answer(self, ack: Ack) -> None:
        """Reports the outcome of a command to the daemon; on either thread."""
        daemon_log.log(logging.INFO, "caboose: command %d: %s %s", ack.command, ack.outcome, ack.detail)
        self._session.send(ack)

    def holdings(self, is_asked: bool) -> Holdings | None:
        """The snapshots of this rank and its limits; None if the daemon has them. On the sender's thread."""
        coordinator = self._coordinator
        if coordinator is None:
            return None
        found = Holdings(
            group=self._group,
            last_number=coordinator.last_number,
            snapshots=self._ring.held,
            snapshot_every=self._ring.every,
            num_bytes=self._ring.num_bytes,
            snapshot_seconds=self._ring.last_seconds,
            budget_left=coordinator.budget_left,
            cool_until=coordinator.cool_until,
            can_skip=self._skip.source is not None,
            can_checkpoint=self._checkpointer is not None,
            is_off_schedule=self._ring.is_off_schedule(),
            can_hunt=self._hunter is not None and self._hunter.num_left > 0,
            can_clip=self._clip is not None and not self._clip.why_not,
        )
        if not is_asked and found == self._sent:
            return None
        self._sent = found
        return found

    def close(self) -> None:
        """Vetoes a pending command and frees the memory."""
        if self._coordinator is not None:
            self._coordinator.close()
        if self._clip is not None:
            self._clip.close()
        self._ring.close()


def _compare_loaders(length: int, batches_per_step: int) -> tuple[bool, int]:
    """Whether all ranks have epochs of one known length, and the batches per step; a collective."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return length >= 0, batches_per_step
    facts = torch.tensor([length, -length, batches_per_step], device=collective_device())
    dist.all_reduce(facts, op=dist.ReduceOp.MAX)
    longest, shortest, batches = facts.tolist()
    return length >= 0 and longest == -shortest, batches
