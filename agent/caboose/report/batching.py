"""Puts the reports of short steps together: several to a message, where the daemon takes such messages.

Design
------
Used by the sender's thread alone. What is ready is taken from the queue in its order; reports of short steps that
follow one another become one message, within the limits of the wire and of what the daemon announced (`Welcome`). Thin
steps are most of all steps where they are short: they stay rows, and of a run of them only the first becomes a report.
Nothing waits for a message to be full: the sender's turns, which are at most 100 ms apart while steps are short,
decide how old a report may get. Until a daemon has announced it, and after every Hello until it does so again, each
report is a message of its own: the daemon behind the endpoint may have become an older one.

A message that cannot be sent yet is kept as its reports, so that it can still be sent one by one.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from caboose.report.record import ThinRow
from caboose_wire import Hello, Message, StepReport, StepReports, StepRun, WireError, encode
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


class Outbox:
    """Makes messages of what is queued."""

    def __init__(self, queue: "deque[Outgoing]", log_once: Callable[[str], None]) -> None:
        self._queue = queue
        self._log_once = log_once
        self._waiting: deque[tuple[Message | ThinRow, bool]] = deque()
        """Taken and not sent yet, each with whether it may travel with others."""
        self._frames: list[bytes] | None = None
        self._num_in_frames = 0
        self._max_reports = 1
        self._max_run = 0
        self._num_dropped = 0
        self.num_failed = 0
        """Reports that could not be encoded."""
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

    def frames(self, num_dropped: int) -> list[bytes] | None:
        """The next message, the same until `sent` is called; None if nothing is ready."""
        self._num_dropped = num_dropped
        while self._frames is None:
            self._collect()
            if not self._waiting:
                return None
            self._encode()
        return self._frames

    def sent(self) -> Hello | None:
        """The message is sent; returns it if it is a Hello."""
        hello = None
        for _ in range(self._num_in_frames):
            item, _ = self._waiting.popleft()
            hello = item if isinstance(item, Hello) else hello
        self._frames = None
        return hello

    def _collect(self) -> None:
        """Takes from the queue until there is enough for one message, or no more that may join."""
        waiting, queue, limit = self._waiting, self._queue, max(self._max_reports, self._max_run + 1)
        while len(waiting) < limit and (not waiting or waiting[-1][1]):
            try:
                if not queue or not queue[0].is_ready():
                    return
                item = queue.popleft()
            except IndexError:  # the training thread dropped it in between
                return
            if isinstance(item, ThinRow):  # always sendable
                self.num_short += 1
                self._note_loss(item.loss)
                waiting.append((item, True))
                continue
            try:
                message = item.message(self._num_dropped + self.num_failed)
            except (WireError, ValueError, RuntimeError) as error:
                self._fail(error)
                continue
            is_short = item.is_short
            if isinstance(message, StepReport):
                self.num_short += is_short
                self.num_long += not is_short
                self._note_loss(message.loss)
            waiting.append((message, is_short))

    def _note_loss(self, loss: float | None) -> None:
        if loss is not None and self.largest_loss < abs(loss) < math.inf:
            self.largest_loss = abs(loss)

    def _encode(self) -> None:
        run = self._run()
        if len(run) > 1:
            steps = tuple([row.thin_step() for row in run[1:]])
            together: StepRun | StepReports = StepRun(first=self._report(run[0]), steps=steps)
            num = len(run)
        else:
            reports = self._together()
            together, num = StepReports(reports=tuple(reports)), len(reports)
        if num > 1:
            try:
                self._frames, self._num_in_frames = encode(together), num
                return
            except WireError:
                pass  # too large together
        try:
            self._frames, self._num_in_frames = encode(self._report(self._waiting[0][0])), 1
        except WireError as error:
            self._waiting.popleft()
            self._fail(error)

    def _run(self) -> Sequence[ThinRow]:
        """The thin steps of one run at the front, as many as a message may have; none if it may have none."""
        found: list[ThinRow] = []
        if self._max_run:
            for item, _ in self._waiting:
                if (
                    not isinstance(item, ThinRow)
                    or (found and not item.follows(found[-1]))
                    or len(found) > self._max_run
                ):
                    break
                found.append(item)
        return found

    def _report(self, item: Message | ThinRow) -> Any:
        return item.message(self._num_dropped + self.num_failed) if isinstance(item, ThinRow) else item

    def _together(self) -> Sequence[StepReport]:
        """The reports at the front that fit into one message."""
        found: list[StepReport] = []
        num_arrays = 0
        for item, may_join in self._waiting:
            if (
                not may_join
                or len(found) >= self._max_reports
                or (found and self._max_run and isinstance(item, ThinRow))
            ):
                break
            message = self._report(item)
            if not isinstance(message, StepReport):
                break
            num_arrays += len(message.arrays)
            if num_arrays > MAX_ARRAYS:
                break
            found.append(message)
        return found

    def _fail(self, error: Exception) -> None:
        self.num_failed += 1
        self._log_once(f"a report could not be encoded and was dropped: {error}")
