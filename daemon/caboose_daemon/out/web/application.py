"""Assembles the HTTP application."""

import sqlite3
from collections.abc import Collection

from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from caboose_daemon.out.metrics.collector import StateCollector
from caboose_daemon.out.web.api import Api
from caboose_daemon.out.web.context import Context
from caboose_daemon.out.web.files import Files
from caboose_daemon.out.web.replies import error
from caboose_daemon.out.web.runbooks import Runbooks
from caboose_daemon.out.web.security import Gate
from caboose_daemon.out.web.stream import Stream


def make_application(
    context: Context, *, token: str, host: str, allowed_hosts: Collection[str], read_token: str = ""
) -> Starlette:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(StateCollector(context.state, context.clock, context.incident_seconds, context.rollback))
    return Starlette(
        routes=[
            *Api(context, registry).routes(),
            *Stream(context).routes(),
            *Files().routes(),
            *Runbooks(context).routes(),
        ],
        middleware=[
            Middleware(Gate, token=token, host=host, allowed_hosts=allowed_hosts, read_token=read_token),
            Middleware(GZipMiddleware, minimum_size=1024, compresslevel=1),
        ],
        exception_handlers={
            404: not_found,
            405: method_not_allowed,
            ClientDisconnect: gone,
            sqlite3.Error: unreadable,
        },
    )


async def not_found(request: Request, problem: Exception) -> Response:
    return error(404, f"no such path: {request.url.path[:200]}; the API is under /api/v1/jobs")


async def method_not_allowed(request: Request, problem: Exception) -> Response:
    return error(405, f"{request.method} is not allowed at {request.url.path[:200]}")


async def gone(request: Request, problem: Exception) -> Response:
    """Nobody reads it: the client left, or was dropped, before its request was complete."""
    return error(400, "the request was not complete")


async def unreadable(request: Request, problem: Exception) -> Response:
    return error(503, f"the journal cannot be read: {problem}")
