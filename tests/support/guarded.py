"""A job whose ranks keep snapshots and carry out commands, as agents attached with `rollback="auto"` do.

    run = guarded(ranks=2).healthy(100).losses(*[9.0] * 200)
    assert run.committed[0].target == 90

The ranks are one: they hold the same snapshots and act together, unless a test says otherwise (`disobeys`, `holdings`).
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from caboose_daemon.config import Config
from caboose_daemon.rollback_state.decision import Decision
from caboose_daemon.rollback_state.settings import RollbackConfig
from caboose_wire import Ack, Command, Held, Holdings
from support.recorder import Core
from support.scenario import JournaledCore, Scenario, watching

GROUP = "group-of-these-ranks"


def guarded(ranks: int = 2, **settings: Any) -> "Guarded":
    """A job that has just been launched."""
    return Guarded(ranks, **settings)


class Guarded(Scenario):
    """One job, its time, its steps, its snapshots and what it was asked to do."""

    def __init__(
        self,
        ranks: int = 2,
        *,
        owner: str = "auto",
        every: int = 10,
        keep: int = 4,
        budget: int = 3,
        cool_steps: int = 0,
        can_skip: bool = True,
        can_hunt: bool = False,
        about: str = "loss_spike divergence non_finite",
        journal: Path | None = None,
        rollback: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        self.every = every
        self.keep = keep
        self.budget = budget
        self.cool_steps = cool_steps
        self.can_skip = can_skip
        self.can_hunt = can_hunt
        self.snapshots: list[Held] = []
        self.attempt = 0
        self.cool_until = 0
        self.last_number = 0
        self.obeys: Callable[[Command], str] = lambda command: ""
        self.answer: Callable[[int, Ack], Ack] = lambda rank, ack: ack
        """What a rank says when it has acted; tests replace this."""
        self.commands: list[Command] = []
        self.armed: Command | None = None
        self._num_seen = 0
        config = Config(
            rules=watching(about, {}),
            rollback=RollbackConfig(**{"mode": "auto", "cooldown_steps": 0, "margin_steps": 10, **(rollback or {})}),
        )
        core = Core(config) if journal is None else JournaledCore(journal, config)
        super().__init__(ranks, core=core, **{"noise": 0.01, "step_seconds": 0.5, "rollback": owner, **settings})
        self.tell_holdings()

    @property
    def decisions(self) -> list[Decision]:
        """Every decision, oldest first."""
        return list(self.job.rollback.decisions)

    @property
    def committed(self) -> list[Decision]:
        """Those that were carried out."""
        return [decision for decision in self.decisions if decision.state == "committed"]

    def disobeys(self, reason: str) -> Self:
        """From now on a rank refuses, with this reason; "deaf": no command arrives at any."""
        self.obeys = lambda command: reason
        return self

    def tell_holdings(self) -> None:
        """Every rank tells what it holds."""
        for rank in sorted(self.talking):
            self.says(rank, self.holdings(rank))

    def holdings(self, rank: int) -> Holdings:
        """What a rank holds; tests replace this."""
        return Holdings(
            group=GROUP,
            last_number=self.last_number,
            snapshots=tuple(self.snapshots),
            snapshot_every=self.every,
            budget_left=self.budget,
            cool_until=self.cool_until,
            can_skip=self.can_skip,
            can_checkpoint=True,
            can_hunt=self.can_hunt,
        )

    def _play(self, *arguments: Any, **settings: Any) -> None:
        super()._play(*arguments, **settings)
        if not self.step % self.every and not self.job.rollback.is_holding:
            self.snapshots.append(Held(self.step, self.step, self.now))
            del self.snapshots[: -self.keep]
            self.tell_holdings()
        self.hear()
        if self.armed is not None and self.step >= self.armed.boundary:
            self._act(self.armed)

    def hear(self) -> None:
        """The ranks take the commands that were sent to them."""
        orders = self.core.orders[self._num_seen :]
        self._num_seen = len(self.core.orders)
        for order in orders:
            command, reason = order.command, self.obeys(order.command)
            self.commands.append(command)
            if reason == "deaf":
                continue
            self.last_number = command.number
            if reason:
                self.says(1, Ack(command=command.number, outcome="refused", detail=reason, step=self.step))
                continue
            self.armed = command
            for rank in sorted(self.talking):
                self.says(rank, Ack(command=command.number, outcome="accepted", step=self.step))

    def _act(self, command: Command) -> None:
        self.armed = None
        if command.kind == "rollback":
            self.attempt += 1
            self.budget -= 1
            self.cool_until = self.step + self.cool_steps
            self.snapshots = [held for held in self.snapshots if held.step <= command.target]
            self.hello |= {"attempt": self.attempt, "start_step": self.step}
        done = Ack(command=command.number, outcome="done", step=self.step, seconds=0.05)
        for rank in sorted(self.talking):
            self.says(rank, self.answer(rank, done))
            if command.kind == "rollback":
                self.says(rank, self.hello_of(rank))
        self.tell_holdings()
