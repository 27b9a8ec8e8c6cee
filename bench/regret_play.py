"""Plays a curve through the daemon's real core: rules, incidents, triage, cost, ladder and commander, by a fake clock.

Design
------
One rank reports the losses, keeps snapshots with the agent's own cadence and shelf, and carries out commands at their
boundary. What takes time in a real run takes it here: reports and commands travel at the pace of the agent's sender.

The oracle knows the future and uses the same snapshots and mechanism. It acts after each disturbance at one of a few
steps spread from its onset, or never, whichever loses least in the end.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from regret_curves import Curve, Weights, World

from caboose.report.record import SHORT_SECONDS
from caboose.report.sender import ALERT_SECONDS, POLL_SECONDS, SHORT_POLL_SECONDS
from caboose.rollback.cadence import Cadence
from caboose.rollback.retention import REACH, SnapshotShelf
from caboose.rollback.ring import HISTORY_SECONDS
from caboose.rollback.slots import Slot
from caboose_daemon.config import Config
from caboose_daemon.rollback.target import notice
from caboose_daemon.rollback_state.settings import RollbackConfig
from caboose_wire import Ack, Command, Heartbeat, Holdings, StepReport

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))  # its `support` has the core without sockets
from support.ranks import a_hello
from support.recorder import Core
from support.scenario import watching

RULES = "loss_spike divergence non_finite gradient_explosion"
KEEP = 3
GROUP = "group-of-the-bench"
NORMS = np.full(4, 0.2, dtype=np.float32)
QUIET_STEPS = 300
SPREAD = (0, 1, 2, 3, 5, 8, 12, 20, 30, 50, 80, 120, 200, 320)
"""Steps after an onset at which the oracle may act."""
SMALL = 1e-6


class Shelf:
    """The snapshots of one rank, and the weights they keep."""

    def __init__(self, curve: Curve) -> None:
        self._cadence = Cadence(curve.every, min_seconds=HISTORY_SECONDS / REACH)
        self._shelf = SnapshotShelf(KEEP)
        self._kept: dict[int, Weights] = {}
        self.is_holding = False

    def pass_step(self, world: World, now: float) -> bool:
        """Ends a step; whether a snapshot was taken."""
        self._cadence.passed(world.curve.step_seconds)
        if not self._cadence.is_due(world.step) or self.is_holding:
            return False
        slot = self._shelf.take_spare()
        if slot is None:
            slot = Slot(torch.empty(1)) if self._shelf.reserve() else self._shelf.evict(world.step, self.every)
        assert slot is not None, "none is pinned"
        slot.num_uses += 1
        slot.step = slot.model_step = world.step
        slot.health, slot.time = "", now
        self._shelf.put(slot)
        self._kept[world.step] = world.weights.copy()
        self._cadence.cost(0.0)
        return True

    @property
    def held(self) -> Any:
        """What a rank reports."""
        return self._shelf.held

    @property
    def every(self) -> int:
        """The cadence in force."""
        return self._cadence.every

    def weights(self, step: int) -> Weights:
        """Those of a snapshot."""
        return self._kept[step]

    def drop_newer(self, step: int) -> None:
        """The run went back to this step."""
        self._shelf.drop_newer(step)


@dataclass(frozen=True)
class Played:
    """What became of a curve."""

    lost: float
    """Steps of training lost by its end."""
    rollbacks: tuple[tuple[int, int, int], ...] = ()
    """Decided at, boundary, target."""


def never(curve: Curve) -> float:
    """Steps lost if nothing is done."""
    return _finish(World(curve))


def auto(curve: Curve) -> Played:
    """What the policy makes of it."""
    return Rank(curve).run()


class Rank:
    """One rank of a job under `auto`, by a fake clock."""

    def __init__(self, curve: Curve) -> None:
        self.curve, self.world, self.shelf = curve, World(curve), Shelf(curve)
        rollback = RollbackConfig(mode="auto", cooldown_steps=100)
        self.core = Core(Config(rules=watching(RULES, {}), rollback=rollback))
        self.now = 1000.0
        self.attempt = self.last_number = self.num_seen = 0
        self.armed: Command | None = None
        self.outbox: list[Any] = []
        self.next_turn = 0.0
        self.cool_until = 0
        self.hello: dict[str, Any] = {"world": 1, "rollback": "auto", "start_step": curve.resumed_at}
        self._say(a_hello(**self.hello))
        self._say(self._holdings())

    @property
    def _step(self) -> int:
        """The step as the run counts it."""
        return self.world.step + self.curve.resumed_at

    def run(self) -> Played:
        """To the end, or until nothing more can happen."""
        last = max((kick.onset + kick.num_steps for kick in self.curve.kicks), default=self.curve.num_steps)
        quiet = 0
        while self.world.step < self.curve.num_steps:
            self._advance()
            (job,) = self.core.state.jobs.values()
            is_quiet = not job.incidents.open and self.armed is None and job.rollback.standing != "checking"
            quiet = quiet + 1 if is_quiet and self.world.step > last else 0
            if quiet > QUIET_STEPS and not _is_hurt(self.world):
                break
        done = [d for d in job.rollback.decisions if d.state == "committed" and d.kind == "rollback"]
        base = self.curve.resumed_at
        rollbacks = tuple((d.step - base, (d.boundary or 0) - base, (d.target or 0) - base) for d in done)
        return Played(_finish(self.world), rollbacks)

    def _advance(self) -> None:
        loss = self.world.advance()
        self.now += self.curve.step_seconds
        report = StepReport(
            attempt=self.attempt,
            seq=self.world.step,
            step=self._step,
            model_step=self._step,
            time=self.now,
            loss=loss,
            lr=(1e-3,),
            arrays={"grad_norm": NORMS},
        )
        self.outbox.append(report)
        if self.shelf.pass_step(self.world, self.now):
            self.outbox.append(self._holdings())
        if self.now >= self.next_turn:
            self._turn()
        if self.armed is not None and self._step >= self.armed.boundary:
            self._act(self.armed)

    def _turn(self) -> None:
        """Reports go out, the daemon judges them, and what it sent before is read."""
        self.next_turn = self.now + self._pace()
        self._hear()
        for message in self.outbox:
            self._say(message)
        self.outbox.clear()
        if self.curve.step_seconds > 1.0:
            self._say(Heartbeat(step=self._step))
        self.core.pass_time(self.now)
        (job,) = self.core.state.jobs.values()
        self.shelf.is_holding = job.rollback.is_holding
        if self.curve.step_seconds >= ALERT_SECONDS:
            self._hear()  # long before the next step ends

    def _pace(self) -> float:
        """Seconds between two turns of the agent's sender."""
        if self.shelf.is_holding:
            return ALERT_SECONDS
        return SHORT_POLL_SECONDS if self.curve.step_seconds < SHORT_SECONDS else POLL_SECONDS

    def _say(self, message: Any) -> None:
        self.core.say(b"peer-0", message, self.now)
        assert not self.core.state.num_refused, "every message is valid"

    def _hear(self) -> None:
        for order in self.core.orders[self.num_seen :]:
            command = order.command
            self.last_number = command.number
            is_late = command.boundary <= self._step
            outcome = "refused" if is_late else "accepted"
            self.outbox.append(Ack(command=command.number, outcome=outcome, step=self._step))
            self.armed = None if is_late else command
        self.num_seen = len(self.core.orders)

    def _act(self, command: Command) -> None:
        self.armed = None
        if command.kind == "rollback":
            self.attempt += 1
            target = command.target - self.curve.resumed_at
            self.cool_until = self._step + 2 * (self._step - command.target)
            self.world.go_back(self.shelf.weights(target))
            self.shelf.drop_newer(target)
        self.outbox.append(Ack(command=command.number, outcome="done", step=self._step, seconds=0.05))
        if command.kind == "rollback":
            self.hello |= {"attempt": self.attempt, "start_step": self._step}
            self.outbox.append(a_hello(**self.hello))
        self.outbox.append(self._holdings())

    def _holdings(self) -> Holdings:
        base = self.curve.resumed_at
        held = (type(h)(h.step + base, h.model_step + base, h.time, h.is_ready, h.is_far) for h in self.shelf.held)
        return Holdings(
            group=GROUP,
            last_number=self.last_number,
            snapshots=tuple(held),
            snapshot_every=self.shelf.every,
            budget_left=10,
            cool_until=self.cool_until,
        )


# The oracle


def oracle(curve: Curve) -> float:
    """Steps lost by the best choice for each disturbance, made in turn."""
    onsets = sorted({kick.onset for kick in curve.kicks})
    best, world, shelf, now = never(curve), World(curve), Shelf(curve), 0.0
    for onset in onsets:
        while world.step < onset - 1:
            world.advance()
            now += curve.step_seconds
            shelf.pass_step(world, now)
        found: dict[tuple[int, int] | None, float] = {None: _finish(world)}
        for after in SPREAD:
            for target in [held.step for held in shelf.held][-1:]:
                found[after, target] = _finish(_acted(world, shelf, onset + after, target))
        choice = min(found, key=lambda choice: found[choice])
        best = min(best, found[choice])
        if choice is not None:
            after, target = choice
            world = _acted(world, shelf, onset + after, target)
            shelf.drop_newer(target)
            now += (world.step - onset) * curve.step_seconds
    return best


def _acted(world: World, shelf: Shelf, decided: int, target: int) -> World:
    """The run after a rollback that is decided at a step."""
    other = world.branch()
    boundary = min(decided + notice(world.curve.step_seconds, 0.0), world.curve.num_steps)
    while other.step < boundary:
        other.advance()
    other.go_back(shelf.weights(target))
    return other


def _is_hurt(world: World) -> bool:
    """Whether damage is left, or a disturbance still to come."""
    ahead = world.branch()
    if ahead.step >= ahead.curve.num_steps:
        return False
    before = ahead.weights.age
    ahead.advance()
    return abs(ahead.weights.age - before - 1.0) > SMALL


def _finish(world: World) -> float:
    """Steps lost by the end, without the policy; the rest is skipped where nothing more can be lost."""
    world = world.branch()
    last = max((kick.onset + kick.num_steps for kick in world.curve.kicks), default=0)
    while world.step < world.curve.num_steps:
        before = world.weights.age
        world.advance()
        if world.step > last and abs(world.weights.age - before - 1.0) <= SMALL:
            return world.lost
    return world.lost
