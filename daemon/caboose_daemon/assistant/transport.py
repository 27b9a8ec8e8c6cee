"""How an assistant reaches the server: standard input and output, or streamable HTTP.

Design
------
Over HTTP the server holds no sessions: each request is answered by itself. The SDK checks Host and Origin, so a page in
a browser cannot use it. A token is required where the server would otherwise give away more than its address does: on
an address that other machines reach, if it can act, and if the daemon itself asks for a token to read.
"""

import asyncio
import hmac
from collections import Counter
from collections.abc import Callable
from typing import Any

import uvicorn
from mcp.server import MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from caboose_daemon.app.serving import bind_http
from caboose_daemon.out.web.connections import HEAD_SECONDS, NO_SNIFFING, Dropped, bounded
from caboose_daemon.out.web.replies import error

PATH = "/mcp"
MAX_BODY_BYTES = 64 * 1024


class TokenGate:
    """Middleware that answers only requests with the token; with an empty token, all."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._token and not self._is_allowed(scope):
            await _refusal()(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _is_allowed(self, scope: Scope) -> bool:
        given = dict(scope["headers"]).get(b"authorization", b"")
        return hmac.compare_digest(given, f"Bearer {self._token}".encode())


def _refusal() -> Response:
    answer = error(401, "this server needs a token: Authorization: Bearer ...")
    answer.headers["www-authenticate"] = "Bearer"
    return answer


def serve_stdio(server: MCPServer[Any]) -> None:
    """Serves until standard input ends."""
    server.run("stdio")


def serve_http(
    server: MCPServer[Any],
    host: str,
    port: int,
    *,
    token: str,
    allowed_hosts: tuple[str, ...],
    tls: dict[str, Any],
    on_ready: Callable[[str], None],
) -> None:
    """Serves HTTP until SIGINT or SIGTERM; `on_ready` gets the URL. ServeError if the address cannot be bound."""
    dropped = Dropped(Counter())
    listener = bind_http(host, port, dropped)
    bound = listener.getsockname()[1]
    application = server.streamable_http_app(
        streamable_http_path=PATH,
        json_response=True,
        stateless_http=True,
        max_request_body_size=MAX_BODY_BYTES,
        transport_security=_security(host, bound, allowed_hosts, is_tls=bool(tls)),
        host=host,
    )
    running = uvicorn.Server(
        uvicorn.Config(
            TokenGate(application, token),
            http=bounded(dropped),
            ws="none",
            log_level="warning",
            access_log=False,
            timeout_keep_alive=int(HEAD_SECONDS),
            timeout_graceful_shutdown=1,
            headers=[NO_SNIFFING],
            **tls,
        )
    )
    scheme = "https" if tls else "http"
    shown = f"[{host}]" if ":" in host else host
    with listener:
        asyncio.run(_serve(running, listener, lambda: on_ready(f"{scheme}://{shown}:{bound}{PATH}")))


async def _serve(running: uvicorn.Server, listener: Any, on_ready: Callable[[], None]) -> None:
    serving = asyncio.create_task(running.serve(sockets=[listener]))
    while not running.started and not serving.done():
        await asyncio.sleep(0.01)
    if not serving.done():
        on_ready()
    await serving


def _security(host: str, port: int, allowed: tuple[str, ...], *, is_tls: bool) -> TransportSecuritySettings:
    """The Host and Origin headers that are accepted."""
    names = ("127.0.0.1", "localhost", "[::1]", f"[{host}]" if ":" in host else host)
    hosts = [f"{name}:{port}" for name in dict.fromkeys(names)]
    hosts += [each for name in allowed for each in (name, f"{name}:*")]
    scheme = "https" if is_tls else "http"
    return TransportSecuritySettings(allowed_hosts=hosts, allowed_origins=[f"{scheme}://{each}" for each in hosts])
