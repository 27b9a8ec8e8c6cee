"""Requests to the HTTP application of a daemon, without a server: ASGI, called directly."""

import asyncio
from typing import Any
from urllib.parse import unquote

from starlette.types import ASGIApp

from support.fuzzing.errors import Wrong


class Client:
    """Asks an application on an event loop of this thread; writes have the token."""

    def __init__(self, application: ASGIApp, token: str, loop: asyncio.AbstractEventLoop) -> None:
        self._application = application
        self._token = token
        self._loop = loop

    def request(self, method: str, path: str, content: str = "", headers: dict[str, str] | None = None) -> bytes:
        """The body of the answer, which must not be a 5xx; what the application raises is raised here."""
        path, _, query = path.partition("?")
        body = content.encode("utf-8", "surrogatepass")
        sent = {"host": "127.0.0.1", "authorization": f"Bearer {self._token}", "content-type": "application/json"}
        sent |= {"content-length": str(len(body)), **(headers or {})}
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "scheme": "http",
            "root_path": "",
            "method": method,
            "path": unquote(path),
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "client": ("127.0.0.1", 1),
            "headers": [(name.encode(), value.encode()) for name, value in sent.items()],
        }
        statuses: list[int] = []
        parts: list[bytes] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            statuses.append(message.get("status", 0))
            parts.append(message.get("body", b""))

        self._loop.run_until_complete(self._application(scope, receive, send))  # type: ignore[arg-type]
        answer = b"".join(parts)
        if statuses[0] >= 500 and path != "/readyz":
            raise Wrong(f"{method} {path}: {statuses[0]} {answer[:500]!r}")
        return answer
