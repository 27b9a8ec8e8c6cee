"""What the protocol needs of the run it acts on."""

from typing import Protocol

from caboose_wire import Command


class Hands(Protocol):
    """The parts of the run that a command moves."""

    def refuses(self, command: Command, step: int) -> str:
        """Why this rank could not carry it out, or nothing; then what it needs stays as it is until `let_go`.

        Called on the helper's thread with the gate's lock held, so it must return within microseconds.
        """

    def let_go(self, command: Command) -> None:
        """The command came to nothing here: what `refuses` kept may change again. On either thread."""

    def act(self, command: Command, step: int) -> str:
        """All ranks are at this boundary and act now, on the training thread; collectives are safe.

        Returns a line on what was done. What it raises ends the run on this rank.
        """
