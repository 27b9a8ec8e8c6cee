"""What one rank knows of the agreement and would agree to: armed or not, how far it is, what it has seen.

Design
------
A state machine without clock, thread, socket or store, so that it can be driven through every order of events by a
test. Three things happen to it:

    arm             a command has no objection, and the boundary is still ahead
    reach(step)     the loop ends a step; says whether a command waits for this boundary
    abort, commit   what was decided of the armed command

`reach` and the objection-then-arm pair must each be atomic against the other: a rank that looks, finds the boundary
ahead, passes it and then arms would say that it is ready for a boundary it will never be at, and the others would act
without it. The caller holds one lock around each (`Negotiation.lock`).

A boundary counts as passed from the moment the loop reaches it, decided or not, so nothing new can be armed for the
one the loop is standing at.
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
        """The highest number of a command that was looked at, whatever came of it."""
        self.armed: Command | None = None
        self.is_leaving = False
        self.budget = Budget(limits)

    def mistake(self, command: Command) -> str:
        """Why a command is not for this rank at all, or nothing; such a one is not even made known to the others."""
        if command.group != self._group:
            return f"it is for another group of processes ({command.group[:8]}); this one is {self._group[:8]}"
        if command.world != self._world:
            return f"it is for {command.world} ranks; there are {self._world}"
        if self._secret is not None and not is_signed(command, self._secret):
            return "it is not signed with the secret of CABOOSE_SECRET_FILE"
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
            return f"the target {command.target} does not lie before the boundary {command.boundary}"
        if not (math.isfinite(command.lr_scale) and command.lr_scale > 0):
            return f"the learning rate cannot be scaled by {command.lr_scale}"
        return self.budget.objection(command, now)

    def see(self, number: int) -> None:
        """This number was looked at, and never will be again."""
        self.last_number = max(self.last_number, number)

    def arm(self, command: Command, now: float) -> None:
        """Ready for this command: the loop will wait for the decision at its boundary."""
        assert self.armed is None
        assert command.boundary > self.passed
        self.armed = command
        self.budget.attempt(command, now)

    def reach(self, step: int) -> Command | None:
        """The loop is at the end of a step; returns the command whose decision it must know before it goes on.

        At a step beyond the boundary too: a loop that leaps over it cannot act there, and must see to an abort.
        """
        self.passed = step
        armed = self.armed
        return None if armed is None or step < armed.boundary else armed

    def abort(self) -> None:
        """The armed command came to nothing."""
        self.armed = None

    def commit(self, now: float) -> None:
        """The armed command was carried out."""
        assert self.armed is not None
        self.budget.spend(self.armed, now)
        self.armed = None
