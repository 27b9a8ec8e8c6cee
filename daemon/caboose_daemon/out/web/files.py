"""Static files of the page: HTML, scripts, styles.

Design
------
The page's own files change with every upgrade, so a browser revalidates them each time; there are many, so they are
kept in memory, compressed. The page's head lists every module, so the browser discovers nothing late: they import one
another.
"""

import gzip
import hashlib
import html
import mimetypes
from importlib.resources import files
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

PAGE = Path(str(files("caboose_daemon.out.web") / "page"))
CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The page loads nothing from other sites, and has no inline scripts or styles."""
REVALIDATE = "no-cache"
HEAD_END = "</head>"


class Files:
    """Serves the page's files."""

    def __init__(self) -> None:
        self._files = {path.name: PageFile(path) for path in PAGE.iterdir() if path.is_file()}

    def routes(self) -> list[Route]:
        return [
            Route("/", self.page),
            Route("/favicon.ico", self.favicon),
            Route("/static/{name}", self.file),
        ]

    async def page(self, request: Request) -> Response:
        body = _page()
        headers = {
            "content-security-policy": CONTENT_POLICY,
            "cache-control": REVALIDATE,
            "etag": _etag(body),
        }
        if _is_known(request, headers["etag"]):
            return Response(status_code=304, headers=headers)
        return Response(body, media_type="text/html", headers=headers)

    async def file(self, request: Request) -> Response:
        """One of the page's files, revalidated each time, so an upgrade is never partly visible."""
        file = self._files.get(request.path_params["name"])
        if file is None:
            raise HTTPException(404)
        file.refresh()
        headers = {"cache-control": REVALIDATE, "etag": file.etag, "vary": "Accept-Encoding"}
        if _is_known(request, file.etag):
            return Response(status_code=304, headers=headers)
        if not _takes_gzip(request):
            return Response(file.body, media_type=file.media_type, headers=headers)
        headers["content-encoding"] = "gzip"
        return Response(file.compressed, media_type=file.media_type, headers=headers)

    async def favicon(self, request: Request) -> Response:
        """The page's icon, at the path browsers request by default."""
        return RedirectResponse("/static/icon.svg")


def _page() -> bytes:
    """index.html with preload links."""
    text = (PAGE / "index.html").read_text(encoding="utf-8")
    modules = (f'<link rel="modulepreload" href="static/{html.escape(p.name)}">' for p in sorted(PAGE.glob("*.js")))
    return text.replace(HEAD_END, "\n".join([*modules, HEAD_END]), 1).encode()


class PageFile:
    """A file of the page in memory, reread when it changes on disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._changed = -1
        self.media_type = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        self.body = self.compressed = b""
        self.etag = ""

    def refresh(self) -> None:
        """Rereads the file if it changed."""
        changed = self._path.stat().st_mtime_ns
        if changed != self._changed:
            self.body = self._path.read_bytes()
            self.compressed = gzip.compress(self.body, mtime=0)
            self.etag = _etag(self.body)
            self._changed = changed


def _etag(body: bytes) -> str:
    return f'"{hashlib.sha256(body).hexdigest()[:32]}"'


def _is_known(request: Request, etag: str) -> bool:
    """Whether the browser already has it; middleware may have made its validator weak."""
    return etag in (tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(","))


def _takes_gzip(request: Request) -> bool:
    return "gzip" in request.headers.get("accept-encoding", "")
