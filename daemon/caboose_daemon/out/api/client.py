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
            said = _said(error)
            raise ClientError(said or f"{self.url}{path}: {error.code}; is that a daemon of this version?") from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise self._no_answer(error) from None

    def post(self, path: str, body: Any, token: str) -> tuple[int, Any]:
        """The status and the JSON answer of a write; a refusal is an answer too."""
        request = urllib.request.Request(  # noqa: S310 - the scheme was looked at
            self.url + path,
            data=json.dumps(body).encode(),
            headers={"authorization": f"Bearer {token}", "content-type": "application/json"},
        )
        try:
            with _opener.open(request, timeout=TIMEOUT_SECONDS) as answer:
                return int(answer.status), json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                try:
                    return error.code, json.load(error)
                except ValueError:
                    raise ClientError(f"{self.url}{path}: {error.code}; is that a daemon of this version?") from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise self._no_answer(error) from None

    def _no_answer(self, error: Exception) -> ClientError:
        reason = getattr(error, "reason", error)
        why = getattr(reason, "strerror", None) or reason
        return ClientError(f"no daemon answers at {self.url}: {why}")


def _said(error: urllib.error.HTTPError) -> str:
    """What a daemon says about a request that it does not answer; nothing where it is none."""
    with error:
        try:
            answer = json.load(error)
        except (OSError, ValueError):
            return ""
    return str(answer.get("error", "")) if isinstance(answer, dict) else ""
