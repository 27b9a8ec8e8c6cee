"""Asks a running daemon, as the commands that are not the daemon do."""

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from caboose_wire.endpoints import split_http

TIMEOUT_SECONDS = 3.0
ANYWHERE = ("0.0.0.0", "::")  # noqa: S104 - compared, not bound
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy would look for its own loopback


class ClientError(RuntimeError):
    """No answer, or none that a daemon would give; the message is one line."""


class Client:
    """A daemon at an address: `host:port`, as `--http` has it, or a URL."""

    def __init__(self, address: str) -> None:
        if "://" in address:
            self.url = address.rstrip("/")
            parts = urllib.parse.urlsplit(self.url)
            if parts.scheme not in ("http", "https") or not parts.netloc:
                raise ValueError(f"{address!r} is not of the form http://host:port")
        else:
            host, port = split_http(address)
            host = "127.0.0.1" if host in ANYWHERE else host
            self.url = f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def get(self, path: str) -> Any:
        """The JSON answer of an API path."""
        try:
            with _opener.open(self.url + path, timeout=TIMEOUT_SECONDS) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            error.close()
            raise ClientError(f"{self.url}{path}: {error.code}; is that a daemon of this version?") from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            why = getattr(reason, "strerror", None) or reason
            raise ClientError(f"no daemon answers at {self.url}: {why}") from None
