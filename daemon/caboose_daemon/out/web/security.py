"""Access control for HTTP.

Design
------
Reading is open to anyone who can reach the port, by default only this machine. But a page of any site can make a local
browser send requests to loopback. So a request must address the daemon by a known host name (no DNS rebinding), and
every write needs the token, as `Authorization: Bearer`, and a JSON body, also on loopback.

With a read token, reading needs that token or the one for writes: as `Authorization: Bearer`, or as the password of
HTTP Basic, under any user name, because that is what a browser asks for by itself and then sends with every request of
the page, the live stream included. There is no cookie, and no token in an address. Health and readiness stay open: a
probe has no token.
"""

import base64
import binascii
import hmac
import os
import secrets
from collections.abc import Collection
from pathlib import Path

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from caboose_daemon.out.web.replies import error
from caboose_wire.endpoints import is_loopback
from caboose_wire.private_files import check_named

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
OPEN_PATHS = ("/healthz", "/readyz")
MAX_BODY_BYTES = 64 * 1024
CHALLENGE = {"www-authenticate": 'Basic realm="caboose", charset="UTF-8"'}


def read_token(path: Path) -> str:
    """The token in this file; ValueError if it is too short, or others may read it."""
    token = path.read_text(encoding="utf-8").strip()
    if len(token) < 16:
        raise ValueError(f"{path}: the token is too short; use at least 16 characters")
    check_named(path)
    return token


def read_or_make_token(path: Path) -> str:
    """The token in this file; if there is no file, one is made, readable only by its owner."""
    try:
        return read_token(path)
    except FileNotFoundError:
        token = secrets.token_urlsafe(32)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(token + "\n")
    return token


class Gate:
    """Middleware that refuses requests for unknown hosts, writes without the token, and reads without theirs."""

    def __init__(
        self, app: ASGIApp, *, token: str, host: str, allowed_hosts: Collection[str], read_token: str = ""
    ) -> None:
        self._app = app
        self._token = token
        self._read_token = read_token
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
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if not is_write:
            return self._read_refusal(scope["path"], scheme.lower(), given.strip())
        if scheme.lower() != "bearer" or not _is_equal(given.strip(), self._token):
            return error(401, "a write needs the daemon's token: Authorization: Bearer <token>")
        if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return error(415, "a write must be JSON: Content-Type: application/json")
        length = headers.get("content-length", "")
        if not length.isdecimal() or int(length) > MAX_BODY_BYTES:
            return error(413, f"a write needs a Content-Length of at most {MAX_BODY_BYTES} bytes")
        return None

    def _read_refusal(self, path: str, scheme: str, given: str) -> Response | None:
        if not self._read_token or path in OPEN_PATHS:
            return None
        token = _password(given) if scheme == "basic" else given if scheme == "bearer" else ""
        if _is_equal(token, self._read_token) or _is_equal(token, self._token):
            return None
        refusal = error(401, "reading needs the read token: Authorization: Bearer <token>, or as the password of Basic")
        refusal.headers.update(CHALLENGE)
        return refusal

    def _knows_host(self, header: str) -> bool:
        name = header.lower()
        name = name[1:].partition("]")[0] if name.startswith("[") else name.rpartition(":")[0] or name
        return name in self._hosts


def _is_equal(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode(), token.encode())


def _password(credentials: str) -> str:
    """Of HTTP Basic; empty if they cannot be read."""
    try:
        return base64.b64decode(credentials, validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return ""
