"""Sends live updates from the loop's thread to the listening pages, each with a bounded queue.

Design
------
The updates of one turn are collected and passed to the HTTP thread's event loop once. Each listener has a bounded
queue; a listener that falls behind loses its backlog and is asked to reload, so it slows down no other.
"""

import asyncio
from collections.abc import Collection
from typing import Any

MAX_BACKLOG = 2000
MAX_LISTENERS = 256


class Listener:
    """One open stream; `kinds` are the updates it wants, None for all."""

    def __init__(self, job: str | None, kinds: Collection[str] | None = None) -> None:
        self.job = job
        self.kinds = kinds
        self.queue: asyncio.Queue[tuple[str, Any] | None] = asyncio.Queue(maxsize=MAX_BACKLOG)

    def wants(self, job: str, kind: str) -> bool:
        return (self.job is None or self.job == job) and (self.kinds is None or kind in self.kinds)

    def put(self, kind: str, data: Any) -> None:
        """Queues an update, or replaces a full backlog by a reload request."""
        if self.queue.full():
            while not self.queue.empty():
                self.queue.get_nowait()
            self.queue.put_nowait(("reload", {}))
        self.queue.put_nowait((kind, data))


class Broker:
    """Delivers updates to listeners; `post` may be called from any thread."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listeners: set[Listener] = set()
        self._is_closed = False

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Called once, on the HTTP thread."""
        self._loop = loop

    @property
    def has_listeners(self) -> bool:
        return bool(self._listeners)

    def post(self, updates: list[tuple[str, str, Any]]) -> None:
        """Passes on (job, kind, data) updates; called on the pipeline's thread."""
        if updates and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._deliver, updates)

    def _deliver(self, updates: list[tuple[str, str, Any]]) -> None:
        for listener in self._listeners:
            for job, kind, data in updates:
                if listener.wants(job, kind):
                    listener.put(kind, {"job": job, **data})

    def join(self, job: str | None, kinds: Collection[str] | None = None) -> Listener | None:
        """A new listener; None if there are too many or the daemon is ending."""
        if self._is_closed or len(self._listeners) >= MAX_LISTENERS:
            return None
        listener = Listener(job, kinds)
        self._listeners.add(listener)
        return listener

    def leave(self, listener: Listener) -> None:
        self._listeners.discard(listener)

    def close(self) -> None:
        """Ends every stream, so that the server can stop at once."""
        self._is_closed = True
        for listener in self._listeners:
            while listener.queue.full():
                listener.queue.get_nowait()
            listener.queue.put_nowait(None)
