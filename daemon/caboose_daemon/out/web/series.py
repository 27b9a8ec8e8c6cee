"""The JSON API of curves: a job's steps, or a window of them, in buckets that keep their extremes."""

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from caboose_daemon.out.web.context import Context
from caboose_daemon.out.web.replies import error, unknown_job

MAX_POINTS = 5000
MAX_STEP = 2**53
"""The largest integer that every JSON reader represents exactly."""


class BadQuery(ValueError):
    """An invalid query parameter; the message names it."""


class SeriesApi:
    """GET /api/v1/jobs/{job}/series?points=N&from=STEP&to=STEP."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        return [Route("/api/v1/jobs/{job}/series", self.series)]

    async def series(self, request: Request) -> Response:
        """The curves of one job in at most about `points` buckets."""
        try:
            points = _whole(request, "points", 1, MAX_POINTS) or 1000
            first, last = _whole(request, "from", 0, MAX_STEP), _whole(request, "to", 0, MAX_STEP)
            if first is not None and last is not None and first > last:
                raise BadQuery(f"from={first} is after to={last}: from must not exceed to")
        except BadQuery as problem:
            return error(400, str(problem))
        name = request.path_params["job"]
        unknown = unknown_job(self._context.state, name)
        if unknown is not None:
            return unknown
        return await run_in_threadpool(self._answer, name, points, first, last)

    def _answer(self, name: str, points: int, first: int | None, last: int | None) -> Response:
        rows, named = self._context.curves(name, points, first, last)  # all finite: see `store.series`
        body = {"job": name, "steps": rows, "named": named}
        return Response(msgspec.json.encode(body), media_type="application/json")


def _whole(request: Request, name: str, least: int, most: int) -> int | None:
    """A parameter as a whole number; None if missing."""
    text = request.query_params.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 16 and least <= int(text) <= most):
        raise BadQuery(f"{name}={text[:64]!r}: give a whole number from {least} to {most}")
    return int(text)
