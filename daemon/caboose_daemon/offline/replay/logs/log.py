"""What a training log says, whatever wrote it: a row per logged step, and the one error a file can be refused with."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from caboose_wire import Event


class LogError(Exception):
    """The file cannot be read as a training log; the message is one line for the user."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.splitlines()))


@dataclass(frozen=True, slots=True)
class Column:
    """One logged quantity, a value for every row of its log."""

    values: NDArray[np.float64]
    is_logged: NDArray[np.bool_]
    """False is a gap: the row says nothing of this quantity. A NaN that was logged is True."""


@dataclass(frozen=True, slots=True)
class Log:
    """A run's log, in the order it was written."""

    file: str
    steps: NDArray[np.int64]
    """A step that goes back, where the run was resumed, is kept as it is."""
    columns: dict[str, Column]
    """`loss`, and where they were logged `grad_norm`, `lr` and `val_loss`; every other quantity by its own name."""
    restarts: frozenset[int] = frozenset()
    """Rows with which another launch of the run begins, where the log tells so beside a step that goes back."""
    events: Mapping[int, tuple[Event, ...]] = field(default_factory=dict)
    """What was declared before a row, where the log tells."""
