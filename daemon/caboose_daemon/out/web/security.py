"""Access control for HTTP.

Design
------
Reading is open to anyone who can reach the port, by default only this machine. But a page of any site can make a local
browser send requests to loopback. So a request must address the daemon by a known host name (no DNS rebinding), and
every write needs the token and a JSON body, also on loopback.
"""

import hmac
import os
import secrets
from collections.abc import Collection
from pathlib import Path

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from caboose_daemon.out.web.replies import error
from caboose_wire.endpoints import is_loopback

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
MAX_BODY_BYTES = 64 * 1024


def read_or_make_token(path: Path) -> str:
    """The token in this file; if there is no file, one is made, readable only by its owner."""
    try:
        token = path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        token = secrets.token_urlsafe(32)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(token + "\n")
    if len(token) < 16:
        raise ValueError(f"{path}: the token is too short; use at least 16 characters")
    return token


class Gate:
    """Middleware that refuses requests for unknown hosts and writes without the token."""

    def __init__(self, app: ASGIApp, *, token: str, host: str, allowed_hosts: Collection[str]) -> None:
        self._app = app
        self._token = token
        self._checks_reads = is_loopback(host)
        self._hosts = {"localhost", "127.0.0.1", "::1", host.strip("[]").lower(), *map(str.lower, allowed_hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            refusal = self._refusal(scope)
            if refusal is not None:
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        is_write = scope["method"] not in SAFE_METHODS
        if (is_write or self._checks_reads) and not self._knows_host(headers.get("host", "")):
            return error(421, f"unknown Host {headers.get('host', '')!r}; add it to daemon.allowed_hosts")
        if not is_write:
            return None
        given = headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), self._token.encode()):
            return error(401, "a write needs the daemon's token: Authorization: Bearer <token>")
        if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return error(415, "a write must be JSON: Content-Type: application/json")
        length = headers.get("content-length", "")
        if not length.isdecimal() or int(length) > MAX_BODY_BYTES:
            return error(413, f"a write needs a Content-Length of at most {MAX_BODY_BYTES} bytes")
        return None

    def _knows_host(self, header: str) -> bool:
        name = header.lower()
        name = name[1:].partition("]")[0] if name.startswith("[") else name.rpartition(":")[0] or name
        return name in self._hosts
