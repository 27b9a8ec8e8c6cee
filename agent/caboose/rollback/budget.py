"""A rank's limits: rollbacks per day, a cool-down in between, bounds for the learning rate.

Design
------
The daemon has its own limits, but these are enforced in the run: a faulty daemon, or someone who impersonates it,
cannot roll a job back without end. Only commands that were carried out count; all ranks carried out the same, so their
counts agree but for fractions of a second, and where they differ, the stricter one vetoes. Aborted attempts are only
limited in rate, since each may hold up a boundary.

A limit of the gradient norm has bounds too, and gets as many steps before it is changed; it may be taken away at once.

A scaled learning rate stays scaled, and scales multiply. So their product since attach is bounded: all commands
together may make the rate a thousandth or ten times of the original. After each change the run gets as many steps as
after a rollback before the next.

Time is an argument. A restarted process starts with empty counts; the daemon keeps its own.
"""

from collections import Counter, deque
from dataclasses import dataclass

from caboose_wire import Command

SCALING = ("rollback", "scale_lr")
"""The kinds that may change learning rates."""
SLACK = 1e-9
"""Three factors of 0.1 give 0.001 only up to the last bit."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a rank allows."""

    max_rollbacks: int = 3
    """Within `window_seconds`."""
    window_seconds: float = 86_400.0
    cool_steps: int = 200
    """After a rollback no other one is accepted for this many steps ..."""
    cool_factor: float = 2.0
    """... or for this many times the distance it went back, if that is more."""
    max_same_target: int = 2
    """A third rollback to one snapshot would repeat the first two."""
    max_attempts: int = 10
    """Within `attempt_seconds`; rollbacks are counted apart from all other kinds."""
    attempt_seconds: float = 60.0
    lr_scales: tuple[float, float] = (1e-3, 10.0)
    """The least and the most that learning rates may be multiplied by, all commands together."""
    max_norms: tuple[float, float] = (1e-3, 1e4)
    """The least and the most that the gradient norm may be limited to."""
    max_ahead: int = 20_000
    """A boundary further ahead, in steps, is refused: until then no other command could be accepted.

    Steps of a fraction of a millisecond need thousands before all ranks have received a command.
    """
    max_skip: int = 100_000
    """Steps whose batches one rollback may drop."""


class Budget:
    """The counts of one rank."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.cool_until = 0
        """The first boundary at which a rollback is accepted again."""
        self.num_rollbacks = 0
        self.lr_scale = 1.0
        """The product of all scales of the learning rate."""
        self.lr_cool_until = 0
        """The first boundary at which a command that only scales them is accepted again."""
        self.clip_cool_until = 0
        """The first boundary at which another limit of the gradient norm is accepted."""
        self._times: deque[float] = deque()
        self._targets: Counter[int] = Counter()
        self._attempts: dict[bool, deque[float]] = {True: deque(), False: deque()}

    def num_left(self, now: float) -> int:
        """Rollbacks that are still allowed."""
        _forget(self._times, now - self.limits.window_seconds)
        return max(0, self.limits.max_rollbacks - len(self._times))

    def objection(self, command: Command, now: float) -> str:
        """Why a command exceeds the limits, or nothing."""
        limits = self.limits
        is_rollback = command.kind == "rollback"
        attempts = self._attempts[is_rollback]
        _forget(attempts, now - limits.attempt_seconds)
        if len(attempts) >= limits.max_attempts:
            return f"too many commands: {len(attempts)} in {limits.attempt_seconds:.0f} s"
        if command.kind in SCALING and (reason := self._lr_objection(command)):
            return reason
        if command.kind == "clip" and command.max_norm and (reason := self._clip_objection(command)):
            return reason
        if not is_rollback:
            return ""
        if self.num_left(now) == 0:
            return f"the budget is spent: {limits.max_rollbacks} rollbacks in {limits.window_seconds / 3600:.0f} h"
        if command.skip > limits.max_skip:
            return f"it would skip {command.skip} steps; {limits.max_skip} are allowed"
        if command.boundary < self.cool_until:
            return f"cooling down until step {self.cool_until}, the boundary is {command.boundary}"
        if self._targets[command.target] >= limits.max_same_target:
            return f"already went back to step {command.target} {self._targets[command.target]} times"
        return ""

    def _lr_objection(self, command: Command) -> str:
        least, most = self.limits.lr_scales
        product = self.lr_scale * command.lr_scale
        if command.lr_scale != 1.0 and not least * (1 - SLACK) <= product <= most * (1 + SLACK):
            return (
                f"the learning rate would be {product:g} times what the run was given, {self.lr_scale:g} of it by "
                f"commands before this one; {least:g} to {most:g} is allowed"
            )
        if command.kind == "scale_lr" and command.boundary < self.lr_cool_until:
            return (
                f"the learning rate was scaled a short while ago and cools down until step {self.lr_cool_until}, the "
                f"boundary is {command.boundary}"
            )
        return ""

    def _clip_objection(self, command: Command) -> str:
        least, most = self.limits.max_norms
        if not least <= command.max_norm <= most:
            return f"the gradient norm would be limited to {command.max_norm:g}; {least:g} to {most:g} is allowed"
        if command.boundary < self.clip_cool_until:
            return (
                f"the limit of the gradient norm was set a short while ago and cools down until step "
                f"{self.clip_cool_until}, the boundary is {command.boundary}"
            )
        return ""

    def attempt(self, command: Command, now: float) -> None:
        """The rank is armed for the command."""
        self._attempts[command.kind == "rollback"].append(now)

    def spend(self, command: Command, now: float) -> None:
        """It was carried out."""
        if command.kind in SCALING and command.lr_scale != 1.0:
            self.lr_scale *= command.lr_scale
            self.lr_cool_until = command.boundary + self.limits.cool_steps
        if command.kind == "clip" and command.max_norm:
            self.clip_cool_until = command.boundary + self.limits.cool_steps
        if command.kind != "rollback":
            return
        self._times.append(now)
        self._targets[command.target] += 1
        self.num_rollbacks += 1
        distance = command.boundary - command.target
        self.cool_until = command.boundary + max(self.limits.cool_steps, int(self.limits.cool_factor * distance))


def _forget(times: deque[float], before: float) -> None:
    while times and times[0] <= before:
        times.popleft()
