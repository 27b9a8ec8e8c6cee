"""A reentrant lock that serves its waiters in the order in which they came.

Design
------
`threading.RLock` is free for whoever asks next: a loop that releases it and takes it again at once keeps it from a
reader for seconds, because the reader has to wake up first. This lock is handed over: `release` makes the longest
waiter the owner, and whoever asks after that waits behind it. `is_wanted` tells the owner of a long hold that somebody
waits, so that it can let them in at a moment of its choice.
"""

import threading
from collections import deque
from types import TracebackType


class FairLock:
    """Used as a context manager; the same thread may take it again."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        """Guards the fields; held for a moment."""
        self._owner: int | None = None
        self._depth = 0
        self._waiters: deque[tuple[int, threading.Lock]] = deque()

    @property
    def is_wanted(self) -> bool:
        """Whether another thread waits for it."""
        return bool(self._waiters)

    def acquire(self) -> None:
        me = threading.get_ident()
        if self._owner == me:
            self._depth += 1
            return
        with self._mutex:
            if self._owner is None:
                self._owner, self._depth = me, 1
                return
            gate = threading.Lock()
            gate.acquire()
            self._waiters.append((me, gate))
        gate.acquire()  # released by the owner before, which has made this thread the owner

    def release(self) -> None:
        assert self._owner == threading.get_ident(), "only its owner releases it"
        self._depth -= 1
        if self._depth:
            return
        with self._mutex:
            if not self._waiters:
                self._owner = None
                return
            self._owner, gate = self._waiters.popleft()
            self._depth = 1
        gate.release()

    def __enter__(self) -> "FairLock":
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
