"""Puts the reports of short steps together: several to a message, where the daemon takes such messages.

Design
------
Used by the sender's thread alone. What is ready is taken from the queue in its order; reports of short steps that
follow one another become one message, within the limits of the wire and of what the daemon announced (`Welcome`). Thin
steps are most of all steps where they are short: they stay rows, and of a run of them only the first becomes a report.
A run is taken from the queue with its first row, and kept until it has all its rows; what is queued behind it goes
when it has no row left, for now or for good. Nothing waits for a message to be full: the sender's turns, which are at
most 100 ms apart while steps are short, decide how old a report may get. Until a daemon has announced it, and after
every Hello until it does so again, each report is a message of its own: the daemon behind the endpoint may have become
an older one.

A message that cannot be sent yet is kept as its reports, so that it can still be sent one by one.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from caboose.report.run_summary import RunTotals
from caboose.report.thin_run import Row, ThinRun
from caboose_wire import Hello, Message, StepReport, StepReports, WireError, encode
from caboose_wire.codec import MAX_ARRAYS
from caboose_wire.messages import MAX_REPORTS, MAX_RUN


class Outgoing(Protocol):
    """Something to send: complete once its values have come off the device."""

    @property
    def is_short(self) -> bool:
        """Whether it is the record of a step so short that several travel together."""

    def is_ready(self) -> bool:
        """Whether `message` may be called."""

    def message(self, num_dropped: int) -> Message:
        """The message itself; built on the sender's thread."""


Queue: TypeAlias = "deque[Outgoing | ThinRun]"
"""From the training thread to the sender's."""


class Outbox:
    """Makes messages of what is queued."""

    def __init__(self, queue: Queue, log_once: Callable[[str], None], totals: RunTotals | None = None) -> None:
        self._queue = queue
        self.totals = totals or RunTotals(is_whole=False)
        """What the steps taken so far add up to."""
        self._log_once = log_once
        self._waiting: deque[tuple[Message, bool]] = deque()
        """Taken and not sent yet, each with whether it may travel with others."""
        self._run: ThinRun | None = None
        """Whose rows come after what is waiting."""
        self._frames: list[bytes] | None = None
        self._num_in_frames = 0
        """Of what is waiting; 0 if rows are in the frames."""
        self._rows: Sequence[Row] = ()
        self._max_reports = 1
        self._max_run = 0
        self._num_dropped = 0
        self.num_failed = 0
        """Reports that could not be encoded."""
        self.num_rows = 0
        """Rows that were sent, or made into reports; the sender's queue is bounded by them."""
        self.num_short = 0
        self.num_long = 0
        """Reports of short and of other steps, since the sender set it to 0."""
        self.largest_loss = 0.0
        """Of the same reports, as a magnitude."""

    def allow(self, max_reports: int = 1, max_run: int = 0) -> None:
        """What one message to the daemon may have: reports, and thin steps after the first of a run."""
        max_reports, max_run = max(1, min(max_reports, MAX_REPORTS)), max(0, min(max_run, MAX_RUN))
        if max_reports < self._max_reports or max_run < self._max_run:
            self._frames = None  # made for another daemon, perhaps
        self._max_reports, self._max_run = max_reports, max_run

    @property
    def is_batching(self) -> bool:
        """Whether several reports may travel together."""
        return self._max_reports > 1

    @property
    def num_left(self) -> int:
        """What was taken from the queue and is not sent yet."""
        run = self._run
        return len(self._waiting) + (0 if run is None else run.num_left)

    def frames(self, num_dropped: int) -> list[bytes] | None:
        """The next message, the same until `sent` is called; None if nothing is ready."""
        self._num_dropped = num_dropped
        while self._frames is None:
            self._collect()
            if self._waiting:
                self._encode()
            elif self._run is None or not self._run.num_left:
                return None
            else:
                self._encode_rows(self._run)
        return self._frames

    def sent(self) -> Hello | None:
        """The message is sent; returns it if it is a Hello."""
        self._frames = None
        if self._run is not None and not self._num_in_frames:
            self._took(self._run, self._rows)
            return None
        hello = None
        for _ in range(self._num_in_frames):
            item, _ = self._waiting.popleft()
            hello = item if isinstance(item, Hello) else hello
        return hello

    def count_rest(self) -> None:
        """The sender has ended: what is left in the queue is counted, and never sent."""
        if self._run is not None:
            self._took(self._run, self._run.waiting(self._run.num_left))
            self._run = None
        while self._queue:
            item = self._queue.popleft()
            if isinstance(item, ThinRun):
                self._took(item, item.waiting(item.num_left))
            elif item.is_ready():
                self._take(item)

    def _collect(self) -> None:
        """Takes from the queue until there is enough for one message, or no more that may join."""
        waiting, queue = self._waiting, self._queue
        while len(waiting) < self._max_reports and (not waiting or waiting[-1][1]):
            run = self._run
            if run is not None:
                is_over = run.is_over  # looked at before its rows are: none comes behind
                if run.num_left:
                    if self._max_run:
                        return
                    self._report_row(run)
                    continue
                if is_over:
                    self._run = None
            try:
                if not queue or not queue[0].is_ready():
                    return
                item = queue.popleft()
            except IndexError:  # the training thread dropped it in between
                return
            if isinstance(item, ThinRun):
                self._run = item
            else:
                self._take(item)

    def _take(self, item: Outgoing) -> None:
        try:
            message = item.message(self._num_dropped + self.num_failed)
        except (WireError, ValueError, RuntimeError) as error:
            self._fail(error)
            return
        is_short = item.is_short
        if isinstance(message, StepReport):
            self.num_short += is_short
            self.num_long += not is_short
            self._note_loss(message.loss)
            self.totals.note(message)
        self._waiting.append((message, is_short))

    def _report_row(self, run: ThinRun) -> None:
        """For a daemon that takes no runs: the next row as a report."""
        rows = run.waiting(1)
        self._waiting.append((run.message(rows, self._num_dropped + self.num_failed), True))
        self._took(run, rows)

    def _took(self, run: ThinRun, rows: Sequence[Row]) -> None:
        run.sent(rows)
        self.num_rows += len(rows)
        self.num_short += len(rows)
        for row in rows:
            self.totals.note_loss(row[1])
        losses = [row[1] for row in rows if row[1] is not None]
        if losses:
            self._note_loss(max(max(losses), -min(losses)))

    def _note_loss(self, loss: float | None) -> None:
        if loss is not None and self.largest_loss < abs(loss) < math.inf:
            self.largest_loss = abs(loss)

    def _encode_rows(self, run: ThinRun) -> None:
        num = self._max_run + 1
        while True:
            rows = run.waiting(num)
            try:
                frames = encode(run.message(rows, self._num_dropped + self.num_failed))
            except WireError as error:
                if len(rows) == 1:
                    self._took(run, rows)
                    self._fail(error)
                    return
                num = len(rows) // 2  # too large together
            else:
                self._frames, self._rows, self._num_in_frames = frames, rows, 0
                return

    def _encode(self) -> None:
        reports = self._together()
        if len(reports) > 1:
            try:
                self._frames, self._num_in_frames = encode(StepReports(reports=tuple(reports))), len(reports)
                return
            except WireError:
                pass  # too large together
        try:
            self._frames, self._num_in_frames = encode(self._waiting[0][0]), 1
        except WireError as error:
            self._waiting.popleft()
            self._fail(error)

    def _together(self) -> Sequence[StepReport]:
        """The reports at the front that fit into one message."""
        found: list[StepReport] = []
        num_arrays = 0
        for message, may_join in self._waiting:
            if not may_join or len(found) >= self._max_reports or not isinstance(message, StepReport):
                break
            num_arrays += len(message.arrays)
            if num_arrays > MAX_ARRAYS:
                break
            found.append(message)
        return found

    def _fail(self, error: Exception) -> None:
        self.num_failed += 1
        self._log_once(f"a report could not be encoded and was dropped: {error}")
