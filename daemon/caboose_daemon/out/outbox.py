"""Delivers items to a slow target on a separate thread, so that the pipeline never waits.

Design
------
`put` is called on the loop's thread with the state's lock held: it appends to a bounded queue and returns. A full queue
drops its oldest item, which is counted. One thread delivers the items one at a time; an exception of the target is
counted, logged when failures begin and end, and the next item is tried. A target that hangs only affects its own queue:
the thread is a daemon thread, and `close` waits for it a few seconds at most.

Each count is written by one thread (`num_dropped` by the caller of `put`, the others by the outbox's thread), so a
scrape may read them at any time.
"""

import logging
import threading
import time
from collections import deque
from typing import Generic, Protocol, TypeVar

from caboose_daemon.jobs.state import ExportCounts

logger = logging.getLogger("caboose.daemon")

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)
CAPACITY = 2000
FLUSH_SECONDS = 2.0
"""Interval between flushes of a target that took items."""
CLOSE_SECONDS = 5.0


class Target(Protocol[T_contra]):
    """Receives the items; every method is called on the outbox's thread and may be slow."""

    name: str
    """Used in logs and metrics."""

    def take(self, item: T_contra) -> None:
        """Delivers one item, or raises."""

    def flush(self) -> None:
        """Writes buffered data."""

    def close(self) -> None:
        """No more items follow."""


class ExportOutbox(Generic[T]):
    """A bounded queue and the thread that delivers it."""

    def __init__(self, target: Target[T], tally: ExportCounts, *, capacity: int = CAPACITY) -> None:
        self.tally = tally
        self._target = target
        self._capacity = capacity
        self._items: deque[T] = deque()
        self._changed = threading.Condition()
        self._is_closing = False
        self._is_failing = False
        self._thread = threading.Thread(target=self._run, name=f"caboose-{target.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, item: T) -> None:
        """Queues an item; never waits."""
        with self._changed:
            if len(self._items) >= self._capacity:
                self._items.popleft()
                self.tally.num_dropped += 1
            self._items.append(item)
            self._changed.notify()

    def close(self, patience: float = CLOSE_SECONDS) -> None:
        """Delivers queued items within `patience` seconds and ends the thread."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        if self._thread.ident is None:
            return
        self._thread.join(timeout=patience)
        if self._thread.is_alive():
            with self._changed:
                left = len(self._items)
            logger.warning("%s: not delivered before shutdown: %d items", self._target.name, left)

    def _run(self) -> None:
        flush_at = time.monotonic() + FLUSH_SECONDS
        has_taken = False
        while True:
            item, is_over = self._next()
            if item is not None:
                has_taken = self._try("take", item) or has_taken
            if has_taken and (is_over or time.monotonic() >= flush_at):
                self._try("flush")
                has_taken, flush_at = False, time.monotonic() + FLUSH_SECONDS
            if is_over and item is None:
                break
        self._try("close")

    def _next(self) -> tuple[T | None, bool]:
        """The next item, or None after a timeout; and whether it is the last."""
        with self._changed:
            if not self._items and not self._is_closing:
                self._changed.wait(FLUSH_SECONDS)
            item = self._items.popleft() if self._items else None
            return item, self._is_closing and not self._items

    def _try(self, what: str, *arguments: T) -> bool:
        try:
            getattr(self._target, what)(*arguments)
        except Exception as error:  # noqa: BLE001 - an external library or server; monitoring continues
            self.tally.num_failed += 1
            if not self._is_failing:
                logger.warning("%s failed: %s; further failures are only counted", self._target.name, one_line(error))
            self._is_failing = True
            return False
        if what == "take":
            self.tally.num_sent += 1
            if self._is_failing:
                logger.info("%s works again", self._target.name)
            self._is_failing = False
        return True


def one_line(error: BaseException) -> str:
    """The error's message, or its type, in one line."""
    text = " ".join(str(error).split())
    return (text or type(error).__name__)[:300]
