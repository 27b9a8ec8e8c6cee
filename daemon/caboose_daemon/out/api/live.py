"""Fans live updates out from the loop's thread to the pages that listen, each within bounds.

Design
------
The pipeline's results of one turn are collected and handed over to the HTTP thread's event loop once, not step by
step. Each listener has a bounded queue; one that falls behind loses its backlog and is told to load again, rather
than slowing anyone down.
"""

import asyncio
from collections.abc import Collection
from typing import Any

MAX_BACKLOG = 2000
MAX_LISTENERS = 256


class Listener:
    """One open page; `kinds` are the updates it wants, None for all of them."""

    def __init__(self, job: str | None, kinds: Collection[str] | None = None) -> None:
        self.job = job
        self.kinds = kinds
        self.queue: asyncio.Queue[tuple[str, Any] | None] = asyncio.Queue(maxsize=MAX_BACKLOG)

    def wants(self, job: str, kind: str) -> bool:
        """Whether an update is for it."""
        return (self.job is None or self.job == job) and (self.kinds is None or kind in self.kinds)

    def offer(self, kind: str, data: Any) -> None:
        """Queues an update, or replaces a full backlog by a request to load again."""
        if self.queue.full():
            while not self.queue.empty():
                self.queue.get_nowait()
            self.queue.put_nowait(("reload", {}))
        self.queue.put_nowait((kind, data))


class Broker:
    """Knows the listeners; `post` may be called from any thread."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listeners: set[Listener] = set()
        self._is_closed = False

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Called once, on the HTTP thread."""
        self._loop = loop

    @property
    def has_listeners(self) -> bool:
        """Whether anyone would hear."""
        return bool(self._listeners)

    def post(self, updates: list[tuple[str, str, Any]]) -> None:
        """Hands over (job, kind, data) updates; called on the pipeline's thread."""
        if updates and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._deliver, updates)

    def _deliver(self, updates: list[tuple[str, str, Any]]) -> None:
        for listener in self._listeners:
            for job, kind, data in updates:
                if listener.wants(job, kind):
                    listener.offer(kind, {"job": job, **data})

    def join(self, job: str | None, kinds: Collection[str] | None = None) -> Listener | None:
        """A new listener; None when there are too many, or the daemon is ending."""
        if self._is_closed or len(self._listeners) >= MAX_LISTENERS:
            return None
        listener = Listener(job, kinds)
        self._listeners.add(listener)
        return listener

    def leave(self, listener: Listener) -> None:
        """The page is gone."""
        self._listeners.discard(listener)

    def close(self) -> None:
        """Ends every stream, so that the server can stop at once."""
        self._is_closed = True
        for listener in self._listeners:
            while listener.queue.full():
                listener.queue.get_nowait()
            listener.queue.put_nowait(None)
