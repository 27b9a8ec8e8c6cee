"""Commands and actions for tests of the agreement."""

import time
from typing import Any

from caboose.rollback.register import Register, Store
from caboose_wire import Command

GROUP = "a-group-of-processes"
KEY = b"k" * 32


def a_command(**changes: Any) -> Command:
    """A rollback at step 10 to step 4; a test names only what it is about."""
    fields: dict[str, Any] = {
        "number": 1,
        "kind": "rollback",
        "group": GROUP,
        "world": 1,
        "boundary": 10,
        "target": 4,
        "expires": time.time() + 600,
    }
    return Command(**{**fields, **changes})


def a_register(store: Store, rank: int = 0, world: int = 1, key: bytes = KEY) -> Register:
    return Register(store, group=GROUP, key=key, rank=rank, world=world)


class PlainActions:
    """Actions that write down what they were asked; `refusal` and `failure` make them difficult."""

    def __init__(self, refusal: str = "", failure: Exception | None = None) -> None:
        self.refusal = refusal
        self.failure = failure
        self.acted: list[tuple[int, int]] = []
        """Number and boundary of each command that was carried out."""
        self.commands: list[Command] = []
        self.held: set[int] = set()
        """Commands for which something is kept."""

    def refuses(self, command: Command, step: int) -> str:
        if not self.refusal:
            self.held.add(command.number)
        return self.refusal

    def release(self, command: Command) -> None:
        self.held.discard(command.number)

    def act(self, command: Command, step: int) -> str:
        if self.failure is not None:
            raise self.failure
        self.acted.append((command.number, step))
        self.commands.append(command)
        self.held.discard(command.number)
        return f"did {command.number}"
