"""A training log in one form, whatever wrote it: a row per logged step, and the error for a file that is refused."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from caboose_wire import Event
from caboose_wire.fields import Scalar


class LogError(Exception):
    """The file cannot be read as a training log; the message is one line for the user."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.splitlines()))


@dataclass(frozen=True, slots=True)
class Column:
    """One logged quantity, a value for every row of its log."""

    values: NDArray[np.float64]
    is_logged: NDArray[np.bool_]
    """False is a gap: the row has no value of this quantity. A NaN that was logged is True."""


@dataclass(frozen=True, slots=True)
class Log:
    """A run's log, in the order it was written."""

    file: str
    steps: NDArray[np.int64]
    """A step number that decreases, where the run was resumed, is kept as it is."""
    columns: dict[str, Column]
    """`loss`, and where they were logged `grad_norm`, `lr` and `val_loss`; every other quantity by its own name."""
    restarts: frozenset[int] = frozenset()
    """Rows with which another launch of the run begins, where the log has that besides a step number that decreases."""
    is_stepwise: bool = False
    """Whether a row is one step, as in a journal; a row of any other log usually stands for many."""
    events: Mapping[int, tuple[Event, ...]] = field(default_factory=dict)
    """Events declared before a row, where the log has them."""
    settings: Mapping[str, Scalar] = field(default_factory=dict)
    """From files beside the log; see `sidecar`."""
