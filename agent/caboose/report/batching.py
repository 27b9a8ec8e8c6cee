"""Puts the reports of short steps together: several to a message, where the daemon takes such messages.

Design
------
Used by the sender's thread alone. What is ready is taken from the queue in its order; reports of short steps that
follow one another become one message, within the limits of the wire and of what the daemon announced (`Welcome`).
Nothing waits for a message to be full: the sender's turns, which are at most 100 ms apart while steps are short,
decide how old a report may get. Until a daemon has announced it, and after every Hello until it does so again, each
report is a message of its own: the daemon behind the endpoint may have become an older one.

A message that cannot be sent yet is kept as its reports, so that it can still be sent one by one.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from caboose_wire import Hello, Message, StepReport, StepReports, WireError, encode
from caboose_wire.codec import MAX_ARRAYS
from caboose_wire.messages import MAX_REPORTS


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
        self._waiting: deque[tuple[Message, bool]] = deque()
        """Built and not sent yet, each with whether it may travel with others."""
        self._frames: list[bytes] | None = None
        self._num_in_frames = 0
        self._max_reports = 1
        self.num_failed = 0
        """Reports that could not be encoded."""
        self.num_short = 0
        self.num_long = 0
        """Reports of short and of other steps, since the sender set it to 0."""
        self.largest_loss = 0.0
        """Of the same reports, as a magnitude."""

    @property
    def max_reports(self) -> int:
        """Reports that one message to the daemon may have."""
        return self._max_reports

    @max_reports.setter
    def max_reports(self, number: int) -> None:
        number = max(1, min(number, MAX_REPORTS))
        if number < self._max_reports:
            self._frames = None  # made for another daemon, perhaps
        self._max_reports = number

    def frames(self, num_dropped: int) -> list[bytes] | None:
        """The next message, the same until `sent` is called; None if nothing is ready."""
        while self._frames is None:
            self._collect(num_dropped)
            if not self._waiting:
                return None
            self._encode()
        return self._frames

    def sent(self) -> Hello | None:
        """The message is sent; returns it if it is a Hello."""
        hello = None
        for _ in range(self._num_in_frames):
            message, _ = self._waiting.popleft()
            hello = message if isinstance(message, Hello) else hello
        self._frames = None
        return hello

    def _collect(self, num_dropped: int) -> None:
        """Builds messages until there are enough for one of the wire's, or no more that may join."""
        waiting, queue = self._waiting, self._queue
        while len(waiting) < self._max_reports and (not waiting or waiting[-1][1]):
            try:
                if not queue or not queue[0].is_ready():
                    return
                item = queue.popleft()
            except IndexError:  # the training thread dropped it in between
                return
            try:
                message = item.message(num_dropped + self.num_failed)
            except (WireError, ValueError, RuntimeError) as error:
                self._fail(error)
                continue
            is_short = item.is_short
            if isinstance(message, StepReport):
                self.num_short += is_short
                self.num_long += not is_short
                if message.loss is not None and self.largest_loss < abs(message.loss) < math.inf:
                    self.largest_loss = abs(message.loss)
            waiting.append((message, is_short))

    def _encode(self) -> None:
        together = self._together()
        if len(together) > 1:
            try:
                self._frames, self._num_in_frames = encode(StepReports(reports=tuple(together))), len(together)
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
            if not may_join or not isinstance(message, StepReport) or len(found) >= self._max_reports:
                break
            num_arrays += len(message.arrays)
            if num_arrays > MAX_ARRAYS:
                break
            found.append(message)
        return found

    def _fail(self, error: Exception) -> None:
        self.num_failed += 1
        self._log_once(f"a report could not be encoded and was dropped: {error}")
