"""The HTTP client of all commands, for a daemon, Prometheus or Alertmanager."""

import http.client
import json
import os
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from caboose_wire.endpoints import split_http

TIMEOUT_SECONDS = 3.0
HINT = "; start one with `caboose daemon`, or name it with --daemon or CABOOSE_HTTP"
READ_TOKEN_FILE = "CABOOSE_READ_TOKEN_FILE"  # noqa: S105 - the name of a variable
ANYWHERE = ("0.0.0.0", "::")  # noqa: S104 - compared, not bound
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy would use its own loopback


def read_token(file: str) -> str:
    """The token in a file; empty if there is none to read, and the daemon's answer then says what it needs."""
    try:
        return Path(file).expanduser().read_text(encoding="utf-8").strip() if file else ""
    except (OSError, UnicodeDecodeError):
        return ""


class ClientError(RuntimeError):
    """No answer, or not the expected one; the message is one line."""


class Client:
    """A server at an address: `host:port`, as in `--http`, or a URL.

    `server` is its name in error messages, `timeout` the maximum seconds of one request. `token` is the token for
    reading, where a daemon requires one; None: the one in the file that CABOOSE_READ_TOKEN_FILE names.
    """

    def __init__(
        self,
        address: str,
        *,
        server: str = "daemon",
        timeout: float = TIMEOUT_SECONDS,
        token: str | None = None,
    ) -> None:
        self._server = server
        self._hint = HINT if server == "daemon" else ""
        self._timeout = timeout
        if token is None:
            token = read_token(os.environ.get(READ_TOKEN_FILE, "")) if server == "daemon" else ""
        self._headers = {"authorization": f"Bearer {token}"} if token else {}
        if "://" in address:
            self.url = address.rstrip("/")
            parts = urllib.parse.urlsplit(self.url)
            if parts.scheme not in ("http", "https") or not parts.netloc:
                raise ValueError(f"{address!r} is not a URL of the form http://host:port")
        else:
            host, port = split_http(address)
            host = "127.0.0.1" if host in ANYWHERE else host
            self.url = f"http://{f'[{host}]' if ':' in host else host}:{port}"

    @property
    def has_token(self) -> bool:
        """Whether it reads with a token."""
        return bool(self._headers)

    def get(self, path: str) -> Any:
        """The JSON answer of a path; ClientError for an error status."""
        status, answer = self._ask(path)
        if status >= 400:
            raise ClientError(_error(answer) or self._unexpected(path, status))
        return answer

    def post(self, path: str, body: Any, token: str) -> tuple[int, Any]:
        """The status and the JSON answer of a write, also for an error status."""
        request = urllib.request.Request(  # noqa: S310 - __init__ checked the scheme
            self.url + path,
            data=json.dumps(body).encode(),
            headers={"authorization": f"Bearer {token}", "content-type": "application/json"},
        )
        status, answer = self._ask(path, request)
        if answer is None:
            raise ClientError(self._unexpected(path, status))
        return status, answer

    def _request(self, path: str) -> urllib.request.Request:
        return urllib.request.Request(self.url + path, headers=self._headers)  # noqa: S310 - __init__ checked the scheme

    def is_ok(self, path: str) -> bool:
        """Whether the path answers with status 200, whatever its body."""
        try:
            with _opener.open(self._request(path), timeout=self._timeout) as answer:
                return bool(answer.status == 200)
        except (OSError, ValueError, http.client.HTTPException):
            return False

    def _ask(self, path: str, request: urllib.request.Request | None = None) -> tuple[int, Any]:
        """The status and the JSON answer; None for an error status whose body is not JSON."""
        try:
            with _opener.open(request or self._request(path), timeout=self._timeout) as answer:
                return int(answer.status), json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                try:
                    return error.code, json.load(error)
                except (OSError, ValueError):
                    return error.code, None
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            why = getattr(reason, "strerror", None) or reason
            raise ClientError(f"no {self._server} answers at {self.url}: {why}{self._hint}") from None

    def _unexpected(self, path: str, status: int) -> str:
        return f"{self.url}{path}: {status}; is that a {self._server} of this version?"


def job_path(job: str, tail: str = "") -> str:
    """The API path of a job; `tail` is what follows, such as `/incidents`."""
    return f"/api/v1/jobs/{urllib.parse.quote(job, safe='')}{tail}"


def _error(answer: Any) -> str:
    """The daemon's error message; empty if none."""
    return str(answer.get("error", "")) if isinstance(answer, dict) else ""
