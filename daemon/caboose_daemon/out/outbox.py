"""Hands what the pipeline makes to something slow, from a thread of its own, so that nobody waits for it.

Design
------
`put` is called on the loop's thread with the state's lock held: it appends to a bounded queue and returns. A full queue
gives up its oldest item, counted. One thread takes the items to their target one by one; what the target raises is
counted, logged when it begins and when it is over, and the next item is tried. A target that hangs costs its own
queue and nothing else: the thread is a daemon one, and `close` waits for it for a few seconds at most.

Counts are written by one thread each (`num_dropped` by the one that puts, the others by the outbox's own), so a scrape
may read them at any time.
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
REST_SECONDS = 2.0
"""A target is told to rest (to write out what it holds back) when this long has passed with something taken."""
CLOSE_SECONDS = 5.0


class Target(Protocol[T_contra]):
    """Where the items go; every method is called on the outbox's thread, and may take its time."""

    name: str
    """In logs and metrics."""

    def take(self, item: T_contra) -> None:
        """Delivers one item, or raises."""

    def rest(self) -> None:
        """Writes out what it holds back."""

    def close(self) -> None:
        """Nothing more comes."""


class Outbox(Generic[T]):
    """A bounded queue, and the thread that empties it."""

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
        """Begins to deliver."""
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
        """Delivers what is queued if that goes quickly, and ends the thread."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        if self._thread.ident is None:
            return
        self._thread.join(timeout=patience)
        if self._thread.is_alive():
            with self._changed:
                left = len(self._items)
            logger.warning("%s did not take everything in time; given up: %d", self._target.name, left)

    def _run(self) -> None:
        rest_at = time.monotonic() + REST_SECONDS
        has_taken = False
        while True:
            item, is_over = self._next()
            if item is not None:
                has_taken = self._try("take", item) or has_taken
            if has_taken and (is_over or time.monotonic() >= rest_at):
                self._try("rest")
                has_taken, rest_at = False, time.monotonic() + REST_SECONDS
            if is_over and item is None:
                break
        self._try("close")

    def _next(self) -> tuple[T | None, bool]:
        """The next item, if one comes in time; and whether there will be none after it."""
        with self._changed:
            if not self._items and not self._is_closing:
                self._changed.wait(REST_SECONDS)
            item = self._items.popleft() if self._items else None
            return item, self._is_closing and not self._items

    def _try(self, what: str, *arguments: T) -> bool:
        try:
            getattr(self._target, what)(*arguments)
        except Exception as error:  # noqa: BLE001 - somebody else's library or server; whatever it is, watching goes on
            self.tally.num_failed += 1
            if not self._is_failing:
                logger.warning("%s fails: %s; the next failures are only counted", self._target.name, one_line(error))
            self._is_failing = True
            return False
        if what == "take":
            self.tally.num_sent += 1
            if self._is_failing:
                logger.info("%s works again", self._target.name)
            self._is_failing = False
        return True


def one_line(error: BaseException) -> str:
    """What it says, or at least what it is, in a line that can be read."""
    text = " ".join(str(error).split())
    return (text or type(error).__name__)[:300]
