"""Static files of the page: HTML, scripts, styles, and plotly's script.

Design
------
The page's own files change with every upgrade, so a browser revalidates them each time; there are many, so they are
kept in memory, compressed. Plotly's script has nearly 5 MB and belongs to an installed version: under a name with that
version a browser caches it for good. It is compressed once, when the page is first requested, and not by the middleware
for each reader. The page's head lists everything it needs, so the browser discovers nothing late: the modules, which
import one another, and plotly's script, which runs after text and numbers are on the screen.
"""

import gzip
import hashlib
import html
import mimetypes
import threading
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

PAGE = Path(str(files("caboose_daemon.out.web") / "page"))
PLOTLY = Path(str(files("plotly") / "package_data" / "plotly.min.js"))
CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The page loads nothing from other sites; plotly uses inline styles."""
REVALIDATE = "no-cache"
IMMUTABLE = "public, max-age=31536000, immutable"
HEAD_END = "</head>"
MAIN_FUNCTION = b'} (typeof self !== "undefined" ? self : this, () => {'


class Files:
    """Serves the page's files."""

    def __init__(self) -> None:
        self.plotly_name = f"plotly-{version('plotly')}.min.js"
        self._files = {path.name: PageFile(path) for path in PAGE.iterdir() if path.is_file()}
        self._compressed = b""
        self._lock = threading.Lock()

    def routes(self) -> list[Route]:
        return [
            Route("/", self.page),
            Route("/favicon.ico", self.favicon),
            Route("/static/plotly.min.js", self.plotly),
            Route(f"/static/{self.plotly_name}", self.plotly),
            Route("/static/{name}", self.file),
        ]

    async def page(self, request: Request) -> Response:
        body = self._page(shows_job="job" in request.query_params)
        headers = {
            "content-security-policy": CONTENT_POLICY,
            "cache-control": REVALIDATE,
            "etag": _etag(body),
        }
        if _is_known(request, headers["etag"]):
            return Response(status_code=304, headers=headers)
        return Response(body, media_type="text/html", headers=headers, background=BackgroundTask(self._prepared))

    def _page(self, *, shows_job: bool) -> bytes:
        """index.html with preload links; plotly is only prefetched for the list of jobs."""
        text = (PAGE / "index.html").read_text(encoding="utf-8")
        modules = (f'<link rel="modulepreload" href="static/{html.escape(p.name)}">' for p in sorted(PAGE.glob("*.js")))
        relation = 'rel="preload" as="script"' if shows_job else 'rel="prefetch"'
        script = f'<link {relation} id="plotly" href="static/{self.plotly_name}">'
        return text.replace(HEAD_END, "\n".join([*modules, script, HEAD_END]), 1).encode()

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

    async def plotly(self, request: Request) -> Response:
        """Plotly's script, from the installed package."""
        is_versioned = request.url.path.endswith(self.plotly_name)
        headers = {
            "cache-control": IMMUTABLE if is_versioned else REVALIDATE,
            "etag": f'"{self.plotly_name}"',
            "vary": "Accept-Encoding",
        }
        if _is_known(request, headers["etag"]):
            return Response(status_code=304, headers=headers)
        body = await run_in_threadpool(self._prepared)
        if _takes_gzip(request):
            return Response(body, media_type="text/javascript", headers={**headers, "content-encoding": "gzip"})
        return Response(await run_in_threadpool(gzip.decompress, body), media_type="text/javascript", headers=headers)

    def _prepared(self) -> bytes:
        """Plotly's script, compressed once (0.25 s)."""
        with self._lock:
            if not self._compressed:
                self._compressed = gzip.compress(hinted(PLOTLY.read_bytes()), compresslevel=6, mtime=0)
            return self._compressed


def hinted(script: bytes) -> bytes:
    """Plotly's script with its main function in parentheses, a hint to the browser that it is called at once.

    Chromium then compiles it in the background while it downloads, and not again when it is called, which saves a third
    of the script's time. A plotly version with a different start or end is left unchanged.
    """
    if script.count(MAIN_FUNCTION) == 1 and script.endswith(b"}));"):
        return script.replace(MAIN_FUNCTION, MAIN_FUNCTION.replace(b"() =>", b"(() =>"))[:-4] + b"})));"
    return script


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
