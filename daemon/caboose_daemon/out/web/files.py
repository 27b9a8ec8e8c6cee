"""What a browser loads before it asks for data: the page, its scripts and styles, and plotly's script.

Design
------
The page's own files change with every upgrade, so a browser keeps them only with their validator and asks each time
whether they still hold; there are many, so they lie in memory, compressed. Plotly's script is nearly five megabytes
and belongs to an installed version: under a name with that version in it a browser keeps it for good. It is compressed
once, when the page is first asked for, and not by the middleware for each reader. What the page leads to is named in
its head, so that nothing is found only after something else was read: the modules, which import one another, and then
plotly's script, which is run once the words and numbers are on the screen.
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
"""The page needs nothing from anywhere else; plotly styles its own elements inline."""
ASK_AGAIN = "no-cache"
FOR_GOOD = "public, max-age=31536000, immutable"
HEAD_END = "</head>"
GREAT_FUNCTION = b'} (typeof self !== "undefined" ? self : this, () => {'


class Files:
    """Serves them."""

    def __init__(self) -> None:
        self.plotly_name = f"plotly-{version('plotly')}.min.js"
        self._files = {path.name: PageFile(path) for path in PAGE.iterdir() if path.is_file()}
        self._compressed = b""
        self._lock = threading.Lock()

    def routes(self) -> list[Route]:
        """The routes, for the application."""
        return [
            Route("/", self.page),
            Route("/favicon.ico", self.favicon),
            Route("/static/plotly.min.js", self.plotly),
            Route(f"/static/{self.plotly_name}", self.plotly),
            Route("/static/{name}", self.file),
        ]

    async def page(self, request: Request) -> Response:
        """The live page."""
        body = self._page(shows_job="job" in request.query_params)
        headers = {
            "content-security-policy": CONTENT_POLICY,
            "cache-control": ASK_AGAIN,
            "etag": _etag(body),
        }
        if _is_known(request, headers["etag"]):
            return Response(status_code=304, headers=headers)
        return Response(body, media_type="text/html", headers=headers, background=BackgroundTask(self._prepared))

    def _page(self, *, shows_job: bool) -> bytes:
        """The page as it lies there, with all it leads to named in its head; from a list of jobs, charts come later."""
        text = (PAGE / "index.html").read_text(encoding="utf-8")
        modules = (f'<link rel="modulepreload" href="static/{html.escape(p.name)}">' for p in sorted(PAGE.glob("*.js")))
        relation = 'rel="preload" as="script"' if shows_job else 'rel="prefetch"'
        script = f'<link {relation} id="plotly" href="static/{self.plotly_name}">'
        return text.replace(HEAD_END, "\n".join([*modules, script, HEAD_END]), 1).encode()

    async def file(self, request: Request) -> Response:
        """One of the page's own files, to be kept only with its validator, so that an upgrade is never half seen."""
        file = self._files.get(request.path_params["name"])
        if file is None:
            raise HTTPException(404)
        file.refresh()
        headers = {"cache-control": ASK_AGAIN, "etag": file.etag, "vary": "Accept-Encoding"}
        if _is_known(request, file.etag):
            return Response(status_code=304, headers=headers)
        if not _takes_gzip(request):
            return Response(file.body, media_type=file.media_type, headers=headers)
        headers["content-encoding"] = "gzip"
        return Response(file.compressed, media_type=file.media_type, headers=headers)

    async def favicon(self, request: Request) -> Response:
        """The page's icon, where browsers look for it unasked."""
        return RedirectResponse("/static/icon.svg")

    async def plotly(self, request: Request) -> Response:
        """Plotly's own script, from the installed package."""
        is_versioned = request.url.path.endswith(self.plotly_name)
        headers = {
            "cache-control": FOR_GOOD if is_versioned else ASK_AGAIN,
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
        """Plotly's script, compressed; a quarter of a second of one core, once."""
        with self._lock:
            if not self._compressed:
                self._compressed = gzip.compress(hinted(PLOTLY.read_bytes()), compresslevel=6, mtime=0)
            return self._compressed


def hinted(script: bytes) -> bytes:
    """Plotly's script with its one great function in brackets, which tells a browser that it is called at once.

    Chromium then compiles it in the background while it arrives, and not a second time when it is called: a third of
    the time that the script takes. A version of plotly that begins or ends in another way is left as it is.
    """
    if script.count(GREAT_FUNCTION) == 1 and script.endswith(b"}));"):
        return script.replace(GREAT_FUNCTION, GREAT_FUNCTION.replace(b"() =>", b"(() =>"))[:-4] + b"})));"
    return script


class PageFile:
    """A file of the page, held in memory, read again when it has changed on disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._changed = -1
        self.media_type = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        self.body = self.compressed = b""
        self.etag = ""

    def refresh(self) -> None:
        """Reads it, if it is not as it was."""
        changed = self._path.stat().st_mtime_ns
        if changed != self._changed:
            self.body = self._path.read_bytes()
            self.compressed = gzip.compress(self.body, mtime=0)
            self.etag = _etag(self.body)
            self._changed = changed


def _etag(body: bytes) -> str:
    return f'"{hashlib.sha256(body).hexdigest()[:32]}"'


def _is_known(request: Request, etag: str) -> bool:
    """Whether the browser has this already; middleware on the way may have made its validator a weak one."""
    return etag in (tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(","))


def _takes_gzip(request: Request) -> bool:
    return "gzip" in request.headers.get("accept-encoding", "")
