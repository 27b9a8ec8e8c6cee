"""Server-sent events: steps, findings and rank states as they come."""

import asyncio
import json
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from caboose_daemon import shapes
from caboose_daemon.context import Context
from caboose_daemon.live import Listener
from caboose_daemon.web.security import error

STATUS_SECONDS = 1.0


class Stream:
    """GET /api/v1/stream, for all jobs or for `?job=NAME`."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        """The route, for the application."""
        return [Route("/api/v1/stream", self.open)]

    async def open(self, request: Request) -> Response:
        """Streams until the page goes away or the daemon ends."""
        job = request.query_params.get("job")
        listener = self._context.broker.join(job)
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
        try:
            yield "retry: 1000\n\n"
            while True:
                if loop.time() >= next_status:
                    next_status = loop.time() + STATUS_SECONDS
                    yield _message("status", self._status(listener.job))
                try:
                    async with asyncio.timeout(max(0.0, next_status - loop.time())):
                        item = await listener.queue.get()
                except TimeoutError:
                    continue
                if item is None:
                    return
                yield _message(*item)
        finally:
            self._context.broker.leave(listener)

    def _status(self, job: str | None) -> object:
        context = self._context
        now = context.clock()
        with context.state.lock:
            if job is None:
                return {"jobs": [shapes.job_row(j, now) for j in context.state.jobs.values()]}
            found = context.state.jobs.get(job)
            return {} if found is None else shapes.job_detail(found, now)


def _message(kind: str, data: object) -> str:
    return f"event: {kind}\ndata: {json.dumps(data, separators=(',', ':'), allow_nan=False)}\n\n"
