"""Somebody who is paged: a webhook receiver that keeps what Alertmanager sends."""

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Pager:
    """What was received, in order."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.notifications: list[dict[str, Any]] = []

    def told(self, **labels: str) -> list[str]:
        """What each notification about alerts with these labels said, in order: one entry per notification."""
        return [
            alert["status"]
            for notification in list(self.notifications)
            for alert in notification["alerts"]
            if labels.items() <= alert["labels"].items()
        ]

    def alerts(self, status: str, **labels: str) -> list[dict[str, Any]]:
        """Every alert of this status with these labels, in every notification."""
        return [
            alert
            for notification in list(self.notifications)
            for alert in notification["alerts"]
            if alert["status"] == status and labels.items() <= alert["labels"].items()
        ]


@contextlib.contextmanager
def a_pager() -> Iterator[Pager]:
    """A receiver on a free port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            pager.notifications.append(json.loads(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Not to standard error."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    pager = Pager(f"http://127.0.0.1:{server.server_port}/page")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield pager
    finally:
        server.shutdown()
        thread.join(5)
        server.server_close()
