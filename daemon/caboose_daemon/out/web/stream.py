"""Server-sent events: steps, findings and rank states as they arrive.

The first `status` has everything, later ones the changes (see `status`); after a `reload` everything is sent again.
"""

import asyncio
import json
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from caboose_daemon.out.api.live import Listener
from caboose_daemon.out.web.context import Context
from caboose_daemon.out.web.replies import error
from caboose_daemon.out.web.status import STATUS_SECONDS, StatusBoard


class Stream:
    """GET /api/v1/stream, for all jobs or for `?job=NAME`; with `?kinds=incident,event` only these, and the status."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._board = StatusBoard(context.state, context.clock, context.rollback.budget)

    def routes(self) -> list[Route]:
        return [Route("/api/v1/stream", self.open)]

    async def open(self, request: Request) -> Response:
        """Streams until the client disconnects or the daemon ends."""
        job = request.query_params.get("job")
        kinds = request.query_params.get("kinds")
        listener = self._context.broker.join(job, None if kinds is None else frozenset(kinds.split(",")))
        if listener is None:
            return error(503, "too many open streams, or the daemon is ending")
        return StreamingResponse(
            self._events(listener),
            media_type="text/event-stream",
            headers={"cache-control": "no-store", "x-accel-buffering": "no"},
        )

    async def _events(self, listener: Listener) -> AsyncIterator[str]:
        loop = asyncio.get_running_loop()
        next_status = loop.time()
        known: int | None = None
        try:
            yield "retry: 1000\n\n"
            while True:
                if loop.time() >= next_status:
                    next_status = loop.time() + STATUS_SECONDS
                    known, status = self._board.message(listener.job, known)
                    yield f"event: status\ndata: {status}\n\n"
                try:
                    async with asyncio.timeout(max(0.0, next_status - loop.time())):
                        item = await listener.queue.get()
                except TimeoutError:
                    continue
                if item is None:
                    return
                if item[0] == "reload":
                    known = None
                yield _message(*item)
        finally:
            self._context.broker.leave(listener)


def _message(kind: str, data: object) -> str:
    return f"event: {kind}\ndata: {json.dumps(data, separators=(',', ':'), allow_nan=False)}\n\n"
