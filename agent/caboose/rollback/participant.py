"""One rank's state in the agreement: armed or not, its step, the numbers it has seen.

Design
------
A state machine without clock, thread, socket or store, so that a test can drive it through every order of events:

    arm             a command has no objection, and the boundary is still ahead
    reach(step)     the loop ends a step; returns whether a command waits for this boundary
    abort, commit   the decision on the armed command

`reach` and the objection-then-arm pair must each be atomic against the other: a rank that finds the boundary ahead,
passes it and then arms would acknowledge a boundary that it will never reach, and the others would act without it. The
caller holds one lock around each (`Negotiation.lock`).

A boundary counts as passed once the loop reaches it, decided or not, so nothing new can be armed for it.
"""

import math

from caboose.rollback.budget import Budget, Limits
from caboose_wire import Command, is_signed


class Participant:
    """One rank's part in the agreement."""

    def __init__(self, *, group: str, world: int, secret: bytes | None, start_step: int, limits: Limits) -> None:
        self._group = group
        self._world = world
        self._secret = secret
        self.passed = start_step
        """The last boundary that the loop has reached."""
        self.last_number = 0
        """The highest command number that was considered, whatever its outcome."""
        self.armed: Command | None = None
        self.is_leaving = False
        self.budget = Budget(limits)

    def mistake(self, command: Command) -> str:
        """Why a command is not for this rank at all, or nothing; such a command is not published either."""
        if command.group != self._group:
            return f"it is for another group of processes ({command.group[:8]}); this one is {self._group[:8]}"
        if command.world != self._world:
            return f"it is for {command.world} ranks; there are {self._world}"
        if self._secret is not None and not is_signed(command, self._secret):
            return "it is not signed with this run's secret (docs/rollback.md: signed commands)"
        return ""

    def objection(self, command: Command, now: float) -> str:
        """Why this rank will not take part, or nothing."""
        if command.number <= self.last_number:
            return f"its number is not above {self.last_number}, the last one seen"
        if self.is_leaving:
            return "this rank is leaving"
        if self.armed is not None:
            return f"busy with command {self.armed.number}"
        if command.expires <= now:
            return f"it expired {now - command.expires:.0f} s ago"
        if command.boundary <= self.passed:
            return f"late: the boundary {command.boundary} is past, this rank is at step {self.passed}"
        if command.boundary > self.passed + self.budget.limits.max_ahead:
            return f"the boundary {command.boundary} is too far ahead of step {self.passed}"
        if command.kind == "rollback" and command.target >= command.boundary:
            return f"the target {command.target} is not before the boundary {command.boundary}"
        if not (math.isfinite(command.lr_scale) and command.lr_scale > 0):
            return f"the learning rate cannot be scaled by {command.lr_scale}"
        return self.budget.objection(command, now)

    def see(self, number: int) -> None:
        """This number was considered, and never will be again."""
        self.last_number = max(self.last_number, number)

    def arm(self, command: Command, now: float) -> None:
        """The loop will wait for the decision at the boundary of this command."""
        assert self.armed is None
        assert command.boundary > self.passed
        self.armed = command
        self.budget.attempt(command, now)

    def reach(self, step: int) -> Command | None:
        """The loop ends a step; returns the command whose decision it must know before it continues.

        Also at a step beyond the boundary: a loop that jumps over it cannot act there, and must abort.
        """
        self.passed = step
        armed = self.armed
        return None if armed is None or step < armed.boundary else armed

    def abort(self) -> None:
        """The armed command was aborted."""
        self.armed = None

    def commit(self, now: float) -> None:
        """The armed command was carried out."""
        assert self.armed is not None
        self.budget.spend(self.armed, now)
        self.armed = None
