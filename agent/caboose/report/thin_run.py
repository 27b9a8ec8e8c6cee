"""Thin steps that follow one another: a row for each, filled by the training thread and sent by the sender's.

Design
------
What is equal in all steps of a run is in the `ThinRun`, and a row has only what differs, in the order of the wire's
`ThinStep`: so rows are sent as they are, and no object is made of one. Most rows have three numbers.

The training thread appends to `rows` and sets `is_over` behind the last; the sender's thread, which takes the run from
the queue with its first row, does everything else. Neither waits for the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from caboose.report.record import wire_batch
from caboose_wire import Phases, StepReport, StepRun, ThinStep

MAX_ROWS = 256
"""Of one run, about: a longer one goes on as another."""

Row: TypeAlias = tuple[float, float | None, tuple[float, ...]] | tuple[Any, ...]
"""Seconds, loss and learning rates; where there is more, also the scheduler's steps, samples, tokens and the batch."""

NUM_PLAIN = 3
"""The length of a row that has no more."""
PLACE = 6
"""Where a longer row has a `batches.BatchPlace`, or None."""


@dataclass(slots=True)
class ThinRun:
    """One run."""

    attempt: int
    first_seq: int
    first_step: int
    model_offset: int
    """The age of the weights, less the step."""
    time: float
    """Unix time at which the first step that is not sent yet began."""
    cadences: tuple[int, int, int]
    """Steps between samples, norms and phases."""
    agent_seconds: float
    """Mean on the training thread, of the steps of this run so far or of those before."""
    rows: list[Row] = field(default_factory=list)
    is_over: bool = False
    """Whether it has all its rows."""
    num_sent: int = 0
    """Rows that are sent, or made into reports. This and `time` belong to the sender's thread."""

    @property
    def is_short(self) -> bool:
        """Only short steps are thin."""
        return True

    def is_ready(self) -> bool:
        """Always: its values are on the host."""
        return True

    @property
    def num_left(self) -> int:
        """Rows that are not sent yet."""
        return len(self.rows) - self.num_sent

    def waiting(self, most: int) -> Sequence[Row]:
        """The next rows to be sent."""
        return self.rows[self.num_sent : self.num_sent + most]

    def sent(self, rows: Sequence[Row]) -> None:
        """These are."""
        self.num_sent += len(rows)
        self.time += sum([row[0] for row in rows])

    def message(self, rows: Sequence[Row], num_dropped: int) -> StepReport | StepRun:
        """The next rows as one message."""
        first = self._report(rows[0], num_dropped)
        if len(rows) == 1:
            return first
        steps: Any = tuple([row if len(row) == NUM_PLAIN else _with_batch(row) for row in rows[1:]])
        return StepRun(first=first, steps=steps)  # a tuple is encoded as the array that a ThinStep is

    def _report(self, row: Row, num_dropped: int) -> StepReport:
        """The next row as a report."""
        step = ThinStep(*(row if len(row) == NUM_PLAIN else _with_batch(row)))
        sample_every, norm_every, phase_every = self.cadences
        number = self.first_step + self.num_sent
        return StepReport(
            attempt=self.attempt,
            seq=self.first_seq + self.num_sent,
            step=number,
            model_step=number + self.model_offset,
            time=self.time + step.seconds,
            loss=step.loss,
            num_samples=step.num_samples,
            num_tokens=step.num_tokens,
            lr=step.lr,
            phases=Phases(step.seconds),
            agent_seconds=self.agent_seconds,
            num_dropped=num_dropped,
            sample_every=sample_every,
            norm_every=norm_every,
            phase_every=phase_every,
            num_scheduler_steps=step.num_scheduler_steps,
            batch=step.batch,
        )


def _with_batch(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return row if row[PLACE] is None else (*row[:PLACE], wire_batch(row[PLACE]))
