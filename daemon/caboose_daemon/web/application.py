"""Puts the HTTP side together."""

from collections.abc import Collection
from importlib.resources import files
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from caboose_daemon.context import Context
from caboose_daemon.exporter import StateCollector
from caboose_daemon.web.api import Api
from caboose_daemon.web.security import Gate, error
from caboose_daemon.web.stream import Stream

PAGE = Path(str(files("caboose_daemon.web") / "page"))
CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The page needs nothing from anywhere else; plotly styles its own elements inline."""


def make_application(context: Context, *, token: str, host: str, allowed_hosts: Collection[str]) -> Starlette:
    """The ASGI application."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(StateCollector(context.state, context.clock))
    return Starlette(
        routes=[
            Route("/", page),
            Route("/favicon.ico", favicon),
            *Api(context, registry).routes(),
            *Stream(context).routes(),
            Route("/static/plotly.min.js", plotly_script),
            Mount("/static", PageFiles(directory=PAGE)),
        ],
        middleware=[
            Middleware(Gate, token=token, host=host, allowed_hosts=allowed_hosts),
            Middleware(GZipMiddleware, minimum_size=1024, compresslevel=1),
        ],
        exception_handlers={404: not_found, 405: method_not_allowed},
    )


class PageFiles(StaticFiles):
    """The page's own files; a browser asks each time whether they changed, so that an upgrade is never half seen."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        """The file, to be kept only with its validator."""
        response = super().file_response(*args, **kwargs)
        response.headers["cache-control"] = "no-cache"
        return response


async def page(request: Request) -> Response:
    """The live page."""
    return FileResponse(
        PAGE / "index.html",
        headers={"content-security-policy": CONTENT_POLICY, "cache-control": "no-cache"},
    )


async def favicon(request: Request) -> Response:
    """The page's icon, where browsers look for it unasked."""
    return RedirectResponse("/static/icon.svg")


async def plotly_script(request: Request) -> Response:
    """Plotly's own script, from the installed package."""
    script = files("plotly") / "package_data" / "plotly.min.js"
    return FileResponse(Path(str(script)), headers={"cache-control": "public, max-age=86400"})


async def not_found(request: Request, problem: Exception) -> Response:
    """Anything else."""
    return error(404, f"nothing at {request.url.path[:200]}; the API is under /api/v1/jobs")


async def method_not_allowed(request: Request, problem: Exception) -> Response:
    """A known path, asked in the wrong way."""
    return error(405, f"{request.method} is not understood at {request.url.path[:200]}")
