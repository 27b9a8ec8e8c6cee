"""What the brake needs of checkpoints and hunts, which are above it."""

from typing import Any, Protocol

from caboose.rollback.ring import Ring


class Saved(Protocol):
    """The result of a save; see `checkpoints.checkpointer`."""

    @property
    def path(self) -> Any:
        """Where it is."""

    @property
    def state(self) -> str:
        """ "saved", "writing" or "failed"."""

    @property
    def error(self) -> str:
        """Why it failed."""


class Saves(Protocol):
    """Saves checkpoints; see `checkpoints.checkpointer`."""

    def save(self, step: int, model_step: int) -> Saved:
        """Saves the state after this step. A collective."""


class Summarised(Protocol):
    """The result of a hunt; see `hunting.result`."""

    @property
    def summary(self) -> str:
        """One line."""


class Hunts(Protocol):
    """Hunts for the origin of a number that is not finite; see `hunting.hunter`."""

    num_left: int

    def objection(self) -> str:
        """Why no hunt can be made, or nothing."""

    def hunt(self, step: int, *, lender: Ring, snapshot: int | None) -> Summarised:
        """Runs the batch of this step again, on the weights of a snapshot if one is given."""
