"""A stand-in for Grafana: a real HTTP server that keeps folders, data sources, dashboards and annotations as Grafana's
API does, adds what Grafana adds (ids, versions, defaults), and fails when a test says so."""

import contextlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

TOKEN = "glsa_of_the_stand_in"
Json = Any
Answer = tuple[int, Json]


@dataclass
class Failure:
    """What happens instead to requests whose method and path match."""

    pattern: str
    status: int
    body: Json = None
    until: threading.Event | None = None
    """The answer waits for it."""


@dataclass
class Request:
    """One request as it came."""

    method: str
    path: str
    body: Json


@dataclass
class StandIn:
    """The state, and what was asked of it."""

    url: str = ""
    prefix: str = ""
    requests: list[Request] = field(default_factory=list)
    folders: dict[str, Json] = field(default_factory=dict)
    sources: dict[str, Json] = field(default_factory=dict)
    dashboards: dict[str, Json] = field(default_factory=dict)
    annotations: dict[int, Json] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def writes(self) -> list[Request]:
        """What was to change something."""
        return [request for request in self.requests if request.method != "GET"]

    def fails(self, pattern: str, status: int, body: Json = None, until: threading.Event | None = None) -> None:
        """From now on, requests like `POST /api/annotations` fail."""
        self.failures.append(Failure(pattern, status, body, until))

    def works(self) -> None:
        """Nothing fails any more."""
        self.failures.clear()

    # Grafana's API, as far as it is used

    def answer(self, method: str, path: str, query: dict[str, list[str]], body: Json) -> Answer:
        """The status and body of one request."""
        routes: list[tuple[str, Callable[..., Answer]]] = [
            (r"GET /api/frontend/settings", lambda: (200, {"buildInfo": {"version": "11.6.0", "commit": "0"}})),
            (r"GET /api/folders/([^/]+)", self._get(self.folders, "folder not found")),
            (r"POST /api/folders", lambda: self._make_folder(body)),
            (r"PUT /api/folders/([^/]+)", lambda uid: self._update(self.folders, uid, body)),
            (r"GET /api/datasources", lambda: (200, list(self.sources.values()))),
            (r"GET /api/datasources/uid/([^/]+)", self._get(self.sources, "Data source not found")),
            (r"POST /api/datasources", lambda: self._make_source(body)),
            (r"PUT /api/datasources/uid/([^/]+)", lambda uid: self._update(self.sources, uid, body)),
            (r"GET /api/dashboards/uid/([^/]+)", self._get(self.dashboards, "Dashboard not found")),
            (r"POST /api/dashboards/db", lambda: self._save_dashboard(body)),
            (r"GET /api/annotations", lambda: (200, self._find_annotations(query))),
            (r"POST /api/annotations", lambda: self._make_annotation(body)),
            (r"PUT /api/annotations/(\d+)", lambda number: self._update_annotation(int(number), body)),
        ]
        for pattern, handle in routes:
            match = re.fullmatch(pattern, f"{method} {path}")
            if match:
                return handle(*match.groups())
        return 404, {"message": "Not found"}

    def _get(self, kept: dict[str, Json], missing: str) -> Callable[[str], Answer]:
        return lambda uid: (200, kept[uid]) if uid in kept else (404, {"message": missing})

    def _update(self, kept: dict[str, Json], uid: str, body: Json) -> Answer:
        if uid not in kept:
            return 404, {"message": "not found"}
        kept[uid] = {**kept[uid], **body, "version": kept[uid]["version"] + 1}
        return 200, kept[uid]

    def _make_folder(self, body: Json) -> Answer:
        if any(folder["title"] == body["title"] for folder in self.folders.values()):
            return 409, {"message": "a folder with the same name already exists"}
        self.folders[body["uid"]] = {**body, "id": 1, "version": 1, "canSave": True}
        return 200, self.folders[body["uid"]]

    def _make_source(self, body: Json) -> Answer:
        if any(source["name"] == body["name"] for source in self.sources.values()):
            return 409, {"message": "data source with the same name already exists"}
        added = {"id": 1, "orgId": 1, "version": 1, "readOnly": False, "isDefault": False, "basicAuth": False}
        self.sources[body["uid"]] = {**added, **body}
        return 200, {"datasource": self.sources[body["uid"]], "id": 1, "message": "Datasource added"}

    def _save_dashboard(self, body: Json) -> Answer:
        dashboard = body["dashboard"]
        if body.get("folderUid") not in self.folders:
            return 400, {"message": "folder not found"}
        known = self.dashboards.get(dashboard["uid"])
        if known is not None and not body.get("overwrite"):
            return 412, {"message": "The dashboard has been changed by someone else", "status": "version-mismatch"}
        version = 1 if known is None else known["dashboard"]["version"] + 1
        panels = [{"transparent": False, **panel} for panel in dashboard.get("panels", [])]
        self.dashboards[dashboard["uid"]] = {
            "dashboard": {**dashboard, "panels": panels, "id": 7, "version": version},
            "meta": {"folderUid": body["folderUid"], "provisioned": False},
        }
        return 200, {"uid": dashboard["uid"], "version": version, "status": "success"}

    def _find_annotations(self, query: dict[str, list[str]]) -> list[Json]:
        wanted = set(query.get("tags", []))
        found = [item for item in self.annotations.values() if wanted <= set(item["tags"])]
        return found[: int(query.get("limit", ["100"])[0])]

    def _make_annotation(self, body: Json) -> Answer:
        if not body.get("text"):
            return 400, {"message": "Failed to save annotation: text field should not be empty"}
        number = len(self.annotations) + 1
        kept = {key: body[key] for key in ("time", "timeEnd", "tags", "text")}
        self.annotations[number] = {"id": number, **kept, "timeEnd": kept["timeEnd"] or kept["time"]}
        return 200, {"message": "Annotation added", "id": number}

    def _update_annotation(self, number: int, body: Json) -> Answer:
        if number not in self.annotations:
            return 404, {"message": "Annotation not found"}
        self.annotations[number] = {**self.annotations[number], **body}
        return 200, {"message": "Annotation updated"}


@contextlib.contextmanager
def standing_in(prefix: str = "") -> Iterator[StandIn]:
    """A stand-in on a free loopback port; its threads are gone when the block ends."""
    stand_in = StandIn(prefix=prefix)
    released = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            text = self.rfile.read(length)
            parts = urlsplit(self.path)
            body = json.loads(text) if text else None
            path = parts.path.removeprefix(prefix)
            with stand_in.lock:
                stand_in.requests.append(Request(self.command, path, body))
                failure = next((f for f in stand_in.failures if re.match(f.pattern, f"{self.command} {path}")), None)
            if failure is not None and failure.until is not None:
                while not failure.until.wait(0.05) and not released.is_set():
                    pass
            if failure is not None:
                status, answer = failure.status, failure.body
            elif not parts.path.startswith(f"{prefix}/api/"):
                status, answer = 404, {"message": "Not found"}
            elif self.headers.get("authorization") != f"Bearer {TOKEN}":
                status, answer = 401, {"message": "Invalid API key"}
            else:
                with stand_in.lock:
                    status, answer = stand_in.answer(self.command, path, parse_qs(parts.query), body)
            self.reply(status, answer)

        def reply(self, status: int, answer: Json) -> None:
            is_page = isinstance(answer, str)
            content = (answer if is_page else json.dumps(answer)).encode()
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the client did not wait
                self.send_response(status)
                if 300 <= status < 400:
                    self.send_header("location", "/login")
                self.send_header("content-type", "text/html" if is_page else "application/json")
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    stand_in.url = f"http://127.0.0.1:{server.server_address[1]}{prefix}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield stand_in
    finally:
        released.set()
        server.shutdown()
        thread.join(5)
        server.server_close()
