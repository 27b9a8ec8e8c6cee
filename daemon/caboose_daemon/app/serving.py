"""What the HTTP server needs before it can serve: a bound socket, and the files of TLS; errors in one line."""

import socket
import ssl
from pathlib import Path
from typing import Any

from caboose_daemon.out.web.connections import Dropped, HttpListener, max_connections
from caboose_wire.private_files import NotPrivate, check_named


class ServeError(ValueError):
    """HTTP cannot be served as configured; the message is one line with the reason and the fix."""


def bind_http(host: str, port: int, dropped: Dropped) -> HttpListener:
    """A socket that listens, and accepts no more connections than it should."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        address = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)[0][4]
        listener = HttpListener(family, socket.SOCK_STREAM)
    except OSError as error:
        raise ServeError(f"--http {host}:{port}: {error.strerror}") from None
    try:
        listener.limit(max_connections(), dropped)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        listener.close()
        hint = f"; is another daemon running? Choose another port, or --http {host}:0" if port else ""
        raise ServeError(f"--http {host}:{port}: {error.strerror}{hint}") from None
    return listener


def tls_arguments(cert: str, key: str) -> dict[str, Any]:
    """uvicorn's arguments for TLS, after a look at the files, of which uvicorn would end with a traceback."""
    if not cert:
        return {}
    cert, key = (str(Path(given).expanduser()) for given in (cert, key))
    for flag, path in (("--tls-cert", cert), ("--tls-key", key)):
        try:
            Path(path).read_bytes()
        except OSError as error:
            raise ServeError(f"{flag} {path}: {error.strerror}") from None
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password=lambda: "")
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or str(error)
        raise ServeError(
            f"--tls-cert {cert}, --tls-key {key}: {reason}; give a PEM chain and its PEM key without a passphrase"
        ) from None
    try:
        check_named(Path(key))
    except NotPrivate as error:
        raise ServeError(f"--tls-key {error}") from None
    return {"ssl_certfile": cert, "ssl_keyfile": key}
