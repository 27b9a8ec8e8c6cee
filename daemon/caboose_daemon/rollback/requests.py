"""Manual requests: a rollback, a learning rate, a limit of the gradient norm, a snapshot, a checkpoint, a hunt, a stop.

Design
------
The daemon's mode does not matter here, the run's does: only `auto` gives a run the means to act. The need for the
command is not judged, but its preconditions are: all ranks are live, they hold the snapshot, no other command is on its
way. The ranks apply their budget and cool-down to manual requests as well. A dry run takes the same path and sends
nothing. Refused requests are recorded too, with the requester.
"""

from dataclasses import dataclass

import msgspec

from caboose_daemon.jobs.job import Attempt, Job
from caboose_daemon.jobs.pipeline import Change
from caboose_daemon.jobs.state import State
from caboose_daemon.rollback.commander import NO_JOURNAL, Commander
from caboose_daemon.rollback.hunting import broken, can_hunt, snapshot_for
from caboose_daemon.rollback.modes import owners_mode
from caboose_daemon.rollback.target import ahead, choose, common, held_on, notice, pace, stride
from caboose_daemon.rollback_state.cost import Cost, weigh
from caboose_daemon.rollback_state.decision import Decision
from caboose_daemon.rollback_state.triage import Triage
from caboose_wire import Held
from caboose_wire.rollback import CommandKind

MAX_SKIP = 100_000
SCALES = (1e-3, 10.0)
"""Allowed learning rate factors; anything outside is taken for a typing error."""
NORMS = (1e-3, 1e4)
"""Allowed limits of the gradient norm; the ranks have the same bounds."""


@dataclass(frozen=True)
class ManualRequest:
    """A manual request."""

    kind: CommandKind = "rollback"
    to: int | None = None
    """The snapshot's step; None for the newest untainted one."""
    skip: int = 0
    lr_scale: float = 1.0
    max_norm: float = 0.0
    """For `clip`; 0 takes the limit away."""
    is_dry: bool = False
    by: str = ""

    def problem(self) -> str:
        """What is wrong with it, or an empty string."""
        if not 0 <= self.skip <= MAX_SKIP:
            return f"skip = {self.skip}: give 0 to {MAX_SKIP} steps"
        if not SCALES[0] <= self.lr_scale <= SCALES[1]:
            return f"lr_scale = {self.lr_scale}: give {SCALES[0]:g} to {SCALES[1]:g}"
        if self.kind == "scale_lr" and self.lr_scale == 1.0:
            return "lr_scale = 1: this changes nothing; give another factor"
        if self.kind == "clip" and self.max_norm and not NORMS[0] <= self.max_norm <= NORMS[1]:
            return f"max_norm = {self.max_norm}: give {NORMS[0]:g} to {NORMS[1]:g}, or 0 for none"
        if self.to is not None and not 0 <= self.to <= 2**53:
            return f"to = {self.to}: give the step of a snapshot"
        return ""


class Requests:
    """Checks manual requests and sends their commands."""

    def __init__(self, state: State, commander: Commander) -> None:
        self._state = state
        self._commander = commander

    def ask(self, job: Job, request: ManualRequest, now: float) -> Decision:
        """The decision on a request, made at once."""
        decision, change = self.asking(job, request, now)
        if change is not None:
            self._commander.make(change)
        return decision

    def asking(self, job: Job, request: ManualRequest, now: float) -> tuple[Decision, Change | None]:
        """The decision on a request, sent or refused, and the change that makes it.

        A dry run gives advised or refused, and no change.
        """
        attempt = job.attempt
        decision = Decision(
            job=job.name,
            number=job.rollback.next_number,
            time=now,
            attempt=job.num_attempts,
            step=job.recent[-1].step if job.recent else 0,
            mode=owners_mode(job),
            kind=request.kind,
            by=request.by[:64] or "unknown",
            skip=request.skip if request.kind == "rollback" else 0,
            lr_scale=request.lr_scale,
            max_norm=request.max_norm if request.kind == "clip" else 0.0,
        )
        problem = request.problem() or self._obstacle(job, attempt, request)
        if problem or attempt is None:
            return self._refuse(job, decision, problem or "no rank has reported yet", request)
        step_seconds = pace(job.recent)
        newest = max((member.step for member in attempt.members.values()), default=0)
        boundary = ahead(newest, notice(step_seconds, job.lag_seconds), stride(job.recent))
        decision = msgspec.structs.replace(decision, boundary=boundary)
        if request.kind == "rollback":
            target, line = self._target(job, attempt, request)
            if target is None:
                return self._refuse(job, decision, line, request)
            triage, cost = self._weighed(job, target.step, boundary, request.skip)
            decision = msgspec.structs.replace(decision, target=target.step, why=(line,), triage=triage, cost=cost)
            if boundary < job.rollback.cool_until:
                why = f"cool-down after the last rollback until step {job.rollback.cool_until}; the ranks would refuse"
                return self._refuse(job, decision, why, request)
        if request.kind == "hunt":
            target_step, onset, line = self._hunt_target(job, attempt, request)
            if target_step is None:
                return self._refuse(job, decision, line, request)
            decision = msgspec.structs.replace(decision, target=target_step, onset=onset, why=(line,))
        if request.is_dry:
            return decision, None
        return self._commander.giving(job, decision, life_seconds=(boundary - newest) * step_seconds)

    def _weighed(self, job: Job, target: int, boundary: int, skip: int) -> tuple[Triage | None, Cost | None]:
        """What waiting would cost beside this rollback, by the triage of an open incident; it is shown, not judged."""
        triage = next((triage for triage in job.rollback.triages.values() if triage.futures is not None), None)
        if triage is None:
            return None, None
        cost = weigh(triage, target=target, boundary=boundary, skip=skip, caution=1.0)
        return msgspec.structs.replace(triage, futures=None), cost

    def _obstacle(self, job: Job, attempt: Attempt | None, request: ManualRequest) -> str:
        record = job.rollback
        if attempt is None or job.state != "running":
            return f"the job is not running ({job.state})"
        allowed = owners_mode(job)
        if allowed != "auto":
            return f"the run allows only {allowed!r}: use attach(..., rollback='auto')"
        flight = record.in_flight
        if flight is not None:
            return f"command {flight.command} (decision {flight.number}: {flight.summary}) has no outcome yet"
        missing = sorted(set(range(attempt.world)) - record.holdings.keys())
        if missing:
            return f"{len(missing)} of {attempt.world} ranks have not reported their snapshots, first rank {missing[0]}"
        if self._state.journal_error:
            return NO_JOURNAL
        if not record.group:
            return "the ranks are not in one process group"
        if request.kind == "rollback" and min(h.budget_left for h in record.holdings.values()) <= 0:
            return "the ranks' rollback budget is spent"
        if request.skip and not all(h.can_skip for h in record.holdings.values()):
            return f"skip = {request.skip}: the loader is not watched (monitor.watch), so no batch can be skipped"
        if request.kind == "checkpoint" and not all(h.can_checkpoint for h in record.holdings.values()):
            return "the run has no checkpoint directory (attach(..., checkpoints=...))"
        if request.kind == "clip" and not all(h.can_clip for h in record.holdings.values()):
            return "gradients cannot be clipped on all ranks (docs/rollback.md): sharded, or an agent too old"
        if request.kind == "hunt" and not can_hunt(job, attempt):
            return "the run keeps no batches for a hunt (attach(..., hunt=True)), or its hunt budget is spent"
        return ""

    def _hunt_target(self, job: Job, attempt: Attempt, request: ManualRequest) -> tuple[int | None, int | None, str]:
        """The snapshot to hunt on (0 for none, None if not held), the step whose batch is rerun, and the reason."""
        found = broken(job, attempt)
        onset = None if found is None else found[1]
        if request.to is None:
            target, line = snapshot_for(job, attempt, onset)
            return target, onset, line
        if request.to not in common(job.rollback.holdings, attempt.world):
            held = held_on(job.rollback.holdings)
            return None, onset, f"no snapshot of step {request.to} is ready on all ranks; {held}"
        return request.to, onset, f"snapshot of step {request.to}, as requested"

    def _target(self, job: Job, attempt: Attempt, request: ManualRequest) -> tuple[Held | None, str]:
        record = job.rollback
        if request.to is None:
            latest = job.recent[-1].step if job.recent else 0
            return choose(record.holdings, attempt.world, latest=latest, taint_of=record.ledger.taint_of)
        ready = common(record.holdings, attempt.world)
        if request.to not in ready:
            return None, f"no snapshot of step {request.to} is ready on all ranks; {held_on(record.holdings)}"
        taint = record.ledger.taint_of(request.to)
        return ready[request.to], f"snapshot of step {request.to}, as requested{f'; tainted: {taint}' if taint else ''}"

    def _refuse(self, job: Job, decision: Decision, why: str, request: ManualRequest) -> tuple[Decision, Change | None]:
        refused = msgspec.structs.replace(decision, state="refused", outcome=why, closed_time=decision.time)
        return refused, None if request.is_dry else self._commander.noting(job, refused)
