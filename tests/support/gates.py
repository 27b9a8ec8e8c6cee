"""Coordinators over a store in memory, for tests of the gate on one rank."""

from typing import Any

from torch.distributed import HashStore

from caboose.rollback.coordinator import Coordinator
from caboose_wire import Ack
from support.commands import GROUP, KEY, PlainActions, a_command
from support.processes import wait_until


class Answers(list[Ack]):
    """What a rank has answered."""

    def outcomes(self) -> list[str]:
        return [ack.outcome for ack in self]


class Gates:
    """Makes started coordinators, and closes them."""

    def __init__(self) -> None:
        self.answers = Answers()
        self._made: list[Coordinator] = []

    def build(self, actions: PlainActions | None = None, **changes: Any) -> Coordinator:
        """A coordinator in a world of one with a short gate; a test names only what it is about."""
        store = changes.pop("store", None) or HashStore()
        open_store = changes.pop("open_store", lambda: store)
        options = {"rank": 0, "world": 1, "group": GROUP, "key": KEY, "poll_seconds": 0.01, "gate_seconds": 0.3}
        options["on_answer"] = self.answers.append
        coordinator = Coordinator(open_store, actions or PlainActions(), **{**options, **changes})
        coordinator.start()
        self._made.append(coordinator)
        return coordinator

    def arm(self, coordinator: Coordinator, **fields: Any) -> None:
        """Offers a command and waits until the rank is ready for it."""
        coordinator.offer(a_command(**fields))
        assert wait_until(lambda: "accepted" in self.answers.outcomes(), 5), self.answers

    def close(self) -> None:
        for coordinator in self._made:
            coordinator.close()


def go(coordinator: Coordinator, first: int, last: int) -> None:
    """The loop ends these steps."""
    for step in range(first, last + 1):
        coordinator.pass_boundary(step)
